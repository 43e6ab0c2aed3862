/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths of fm_crc32c_copy_extend(), which picks one; named here for the tests. Each needs the
 * processor that its has_ tells of. Invariant: they differ in speed only.
 */
#ifndef FM_BASE_CRC32C_COPY_H
#define FM_BASE_CRC32C_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool fm_crc32c_copy_has_wide(void);   /* AVX-512, VPCLMULQDQ */
bool fm_crc32c_copy_has_narrow(void); /* SSE4.2, PCLMULQDQ */
uint32_t fm_crc32c_copy_wide(uint32_t before, char *to, const char *from, size_t len);
uint32_t fm_crc32c_copy_narrow(uint32_t before, char *to, const char *from, size_t len);

#endif
