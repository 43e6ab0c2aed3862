// SPDX-License-Identifier: Apache-2.0
/*
 * The one clock (CLOCK_MONOTONIC), and the word that stands in for a fence under ThreadSanitizer.
 * Drivers call it; core never does.
 */
#include <time.h>

#include "base/atomic.h"
#include "base/clock.h"

#ifdef __SANITIZE_THREAD__
uint32_t fm_fence_dummy;
#endif

uint64_t fm_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}
