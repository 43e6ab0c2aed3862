/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Monotonic time in nanoseconds, for drivers. The pure core never calls this: it is handed the
 * time.
 */
#ifndef FM_BASE_CLOCK_H
#define FM_BASE_CLOCK_H

#include <stdint.h>

uint64_t fm_clock_ns(void);

#endif
