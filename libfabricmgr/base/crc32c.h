/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C (Castagnoli) as RFC 3720 prints it: reflected, inverted at both ends. Any layer may call
 * it.
 */
#ifndef FM_BASE_CRC32C_H
#define FM_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t fm_crc32c(const void *data, size_t len);
/* Of bytes that end in @data and begin with others, whose checksum is @before (0: with none). */
uint32_t fm_crc32c_extend(uint32_t before, const void *data, size_t len);
/* Copies and checksums in one pass; @to need not be read soon (its lines are not kept in the cache
 * where the processor allows that). The copy is complete for other threads when this returns. */
uint32_t fm_crc32c_copy(void *to, const void *from, size_t len);
uint32_t fm_crc32c_copy_extend(uint32_t before, void *to, const void *from, size_t len);

#endif
