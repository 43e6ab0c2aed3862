// SPDX-License-Identifier: Apache-2.0
/*
 * CRC32C through ISA-L, which picks the fastest instructions at run time. Pure.
 */
#include <isa-l/crc.h>

#include "base/crc32c.h"

uint32_t fm_crc32c_extend(uint32_t before, const void *data, size_t len)
{
	const unsigned char *next = data;
	uint32_t crc = ~before;

	/* ISA-L takes an int and (wrongly) a pointer to non-const; it only reads. */
	while (len) {
		size_t part = len < (1u << 30) ? len : (1u << 30);

		crc = crc32_iscsi((unsigned char *)next, (int)part, crc);
		next += part;
		len -= part;
	}
	return ~crc;
}

uint32_t fm_crc32c(const void *data, size_t len)
{
	return fm_crc32c_extend(0, data, len);
}
