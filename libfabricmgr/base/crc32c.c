// SPDX-License-Identifier: Apache-2.0
/*
 * CRC32C through ISA-L, which picks the fastest instructions at run time; and a copy that checksums
 * on the way, which ISA-L has not. Pure. Invariant: every path gives the same checksum.
 */
#include <string.h>

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

uint32_t fm_crc32c_copy(void *to, const void *from, size_t len)
{
	return fm_crc32c_copy_extend(0, to, from, len);
}

#ifdef __x86_64__

#include <pthread.h>

/*
 * Three streams hide the latency of the crc32 instruction (3 cycles). A stream is a page and a
 * cache line long: loads of one stream then never have the low 12 bits of another's stores, which
 * the processor would take for the same address. Stores pass by the cache: a copy of a block does
 * not read what it overwrites, and does not drive out what others use.
 */
#define STREAM 4160u

static uint32_t behind_one[4][256], behind_two[4][256]; /* a CRC moved over 1 and 2 streams */
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

__attribute__((target("sse4.2"))) static uint32_t over_zeros(uint32_t crc, size_t len)
{
	while (len--)
		crc = __builtin_ia32_crc32qi(crc, 0);
	return crc;
}

static void make_tables(void)
{
	for (uint32_t byte = 0; byte < 4; byte++)
		for (uint32_t value = 0; value < 256; value++) {
			behind_one[byte][value] = over_zeros(value << (8 * byte), STREAM);
			behind_two[byte][value] = over_zeros(value << (8 * byte), 2 * STREAM);
		}
}

static uint32_t move(const uint32_t table[4][256], uint32_t crc)
{
	return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^
	       table[3][crc >> 24];
}

__attribute__((target("sse4.2"))) static uint64_t copy_word(char *to, const char *from,
							    uint64_t crc)
{
	uint64_t word;

	memcpy(&word, from, sizeof(word));
	__builtin_ia32_movnti64((long long *)(void *)to, (long long)word);
	return __builtin_ia32_crc32di(crc, word);
}

/* @to is aligned to 8. */
__attribute__((target("sse4.2"))) static uint32_t copy_streams(uint32_t before, char *to,
							       const char *from, size_t len)
{
	uint64_t crc = (uint32_t)~before;

	for (; len >= 3 * STREAM; to += 3 * STREAM, from += 3 * STREAM, len -= 3 * STREAM) {
		uint64_t second = 0, third = 0;

		for (size_t i = 0; i < STREAM; i += 8) {
			crc = copy_word(to + i, from + i, crc);
			second = copy_word(to + STREAM + i, from + STREAM + i, second);
			third = copy_word(to + 2 * STREAM + i, from + 2 * STREAM + i, third);
		}
		crc = move(behind_two, (uint32_t)crc) ^ move(behind_one, (uint32_t)second) ^
		      (uint32_t)third;
	}
	for (; len >= 8; to += 8, from += 8, len -= 8)
		crc = copy_word(to, from, crc);
	for (; len; len--) {
		*to++ = *from;
		crc = __builtin_ia32_crc32qi((uint32_t)crc, (unsigned char)*from++);
	}
	__builtin_ia32_sfence(); /* stores that passed by the cache are not ordered otherwise */
	return ~(uint32_t)crc;
}

uint32_t fm_crc32c_copy_extend(uint32_t before, void *to, const void *from, size_t len)
{
	/* Short copies are soon read again: those stay in the cache. */
	if (len < 65536 || (uintptr_t)to % 8 || !__builtin_cpu_supports("sse4.2")) {
		memcpy(to, from, len);
		return fm_crc32c_extend(before, to, len);
	}
	pthread_once(&tables_once, make_tables);
	return copy_streams(before, to, from, len);
}

#else

uint32_t fm_crc32c_copy_extend(uint32_t before, void *to, const void *from, size_t len)
{
	memcpy(to, from, len);
	return fm_crc32c_extend(before, to, len);
}

#endif
