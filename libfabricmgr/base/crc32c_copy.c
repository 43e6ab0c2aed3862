// SPDX-License-Identifier: Apache-2.0
/*
 * A copy that takes the CRC32C on the way, which ISA-L has not. Pure. Invariant: every path gives
 * the same bytes and the same checksum.
 */
#include <string.h>

#include "base/crc32c.h"
#include "base/crc32c_copy.h"

uint32_t fm_crc32c_copy(void *to, const void *from, size_t len)
{
	return fm_crc32c_copy_extend(0, to, from, len);
}

static uint32_t copy_plain(uint32_t before, void *to, const void *from, size_t len)
{
	memcpy(to, from, len);
	return fm_crc32c_extend(before, to, len);
}

#ifdef __x86_64__

#include <immintrin.h>
#include <pthread.h>

/*
 * Both paths go through several streams at once. That hides the latency of the checksum, and a core
 * has more pages in flight: four streams of whole cache lines that pass by the cache copy 2 MiB in
 * two thirds of memcpy's time, checksum included. A copy of a block does not read what it
 * overwrites, and does not drive out what others use.
 */
#define WIDE_STREAMS 4u
#define WIDE_STREAM  8192u

/*
 * Narrow streams are a page and a cache line long: loads of one stream then never have the low 12
 * bits of another's stores, which the processor would take for the same address.
 */
#define NARROW_STREAM 4160u

/* Everything below is of reflected polynomials modulo that of CRC32C: bit 31 is x^0. */
static struct {
	uint32_t over_narrow, over_two_narrow, over_wide; /* moves a CRC over so many bytes */
	uint64_t fold_low, fold_high;			  /* moves 16 bytes over 64 */
} constants;

static pthread_once_t constants_once = PTHREAD_ONCE_INIT;

static uint32_t power_of_x(uint64_t n)
{
	uint32_t value = 0x80000000u;

	while (n--)
		value = value >> 1 ^ (value & 1 ? 0x82f63b78u : 0);
	return value;
}

/*
 * As in Gopal and others, Fast CRC Computation for Generic Polynomials Using PCLMULQDQ, Intel 2009.
 * What is multiplied by x^n here is so by x^(n - 33), since a product of reflected factors and the
 * crc32 instruction that reduces it add 1 and 32; folding adds 33 - 64 to the lower 8 bytes, which
 * are the first, and 33 to the others.
 */
static void make_constants(void)
{
	constants.over_narrow = power_of_x(8 * NARROW_STREAM - 33);
	constants.over_two_narrow = power_of_x(8 * 2 * NARROW_STREAM - 33);
	constants.over_wide = power_of_x(8 * WIDE_STREAM - 33);
	constants.fold_low = power_of_x(512 + 31);
	constants.fold_high = power_of_x(512 - 33);
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t move(uint32_t crc, uint32_t over)
{
	__m128i product =
		_mm_clmulepi64_si128(_mm_cvtsi32_si128((int)crc), _mm_cvtsi32_si128((int)over), 0);

	return (uint32_t)_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

#define WIDE "avx512f,avx512bw,avx512vl,vpclmulqdq,pclmul,sse4.2"

/* What 64 bytes are worth, as if they were 64 bytes further on. */
__attribute__((target(WIDE))) static __m512i fold(__m512i sum, __m512i by, __m512i next)
{
	return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, by, 0x00),
					 _mm512_clmulepi64_epi128(sum, by, 0x11), next, 0x96);
}

__attribute__((target(WIDE))) static __m512i copy_line(char *to, const char *from)
{
	__m512i line = _mm512_loadu_si512(from);

	_mm512_stream_si512((void *)to, line);
	return line;
}

__attribute__((target(WIDE))) static uint32_t sum_of(__m512i line)
{
	uint64_t words[8], crc = 0;

	_mm512_storeu_si512(words, line);
	for (uint32_t i = 0; i < 8; i++)
		crc = _mm_crc32_u64(crc, words[i]);
	return (uint32_t)crc;
}

__attribute__((target(WIDE))) uint32_t fm_crc32c_copy_wide(uint32_t before, char *to,
							   const char *from, size_t len)
{
	/* Stores that pass by the cache are of whole lines. */
	size_t head = -(uintptr_t)to & 63;
	uint32_t crc;
	__m512i by;

	pthread_once(&constants_once, make_constants);
	by = _mm512_broadcast_i32x4(
		_mm_set_epi64x((long long)constants.fold_high, (long long)constants.fold_low));
	if (head > len)
		head = len;
	crc = ~copy_plain(before, to, from, head);
	to += head, from += head, len -= head;
	while (len >= WIDE_STREAMS * WIDE_STREAM) {
		__m512i sums[WIDE_STREAMS];

		for (uint32_t s = 0; s < WIDE_STREAMS; s++)
			sums[s] = copy_line(to + s * WIDE_STREAM, from + s * WIDE_STREAM);
		sums[0] = _mm512_xor_si512(sums[0],
					   _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
		for (size_t at = 64; at < WIDE_STREAM; at += 64)
			for (uint32_t s = 0; s < WIDE_STREAMS; s++)
				sums[s] = fold(sums[s], by,
					       copy_line(to + s * WIDE_STREAM + at,
							 from + s * WIDE_STREAM + at));
		crc = sum_of(sums[0]);
		for (uint32_t s = 1; s < WIDE_STREAMS; s++)
			crc = move(crc, constants.over_wide) ^ sum_of(sums[s]);
		to += WIDE_STREAMS * WIDE_STREAM, from += WIDE_STREAMS * WIDE_STREAM;
		len -= WIDE_STREAMS * WIDE_STREAM;
	}
	_mm_sfence(); /* stores that passed by the cache are not ordered otherwise */
	return copy_plain(~crc, to, from, len);
}

__attribute__((target("sse4.2,pclmul"))) static uint64_t copy_word(char *to, const char *from,
								   uint64_t crc)
{
	uint64_t word;

	memcpy(&word, from, sizeof(word));
	_mm_stream_si64((long long *)(void *)to, (long long)word);
	return _mm_crc32_u64(crc, word);
}

__attribute__((target("sse4.2,pclmul"))) uint32_t
fm_crc32c_copy_narrow(uint32_t before, char *to, const char *from, size_t len)
{
	size_t head = -(uintptr_t)to & 7;
	uint64_t crc;

	pthread_once(&constants_once, make_constants);
	if (head > len)
		head = len;
	crc = (uint32_t)~copy_plain(before, to, from, head);
	to += head, from += head, len -= head;
	while (len >= 3 * NARROW_STREAM) {
		uint64_t second = 0, third = 0;

		for (size_t i = 0; i < NARROW_STREAM; i += 8) {
			const char *at = from + i;

			crc = copy_word(to + i, at, crc);
			second = copy_word(to + NARROW_STREAM + i, at + NARROW_STREAM, second);
			third = copy_word(to + 2 * NARROW_STREAM + i, at + 2 * NARROW_STREAM,
					  third);
		}
		crc = move((uint32_t)crc, constants.over_two_narrow) ^
		      move((uint32_t)second, constants.over_narrow) ^ (uint32_t)third;
		to += 3 * NARROW_STREAM, from += 3 * NARROW_STREAM, len -= 3 * NARROW_STREAM;
	}
	_mm_sfence(); /* see fm_crc32c_copy_wide() */
	return copy_plain(~(uint32_t)crc, to, from, len);
}

bool fm_crc32c_copy_has_wide(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("vpclmulqdq") &&
	       fm_crc32c_copy_has_narrow();
}

bool fm_crc32c_copy_has_narrow(void)
{
	return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

#else

bool fm_crc32c_copy_has_wide(void)
{
	return false;
}

bool fm_crc32c_copy_has_narrow(void)
{
	return false;
}

uint32_t fm_crc32c_copy_wide(uint32_t before, char *to, const char *from, size_t len)
{
	return copy_plain(before, to, from, len);
}

uint32_t fm_crc32c_copy_narrow(uint32_t before, char *to, const char *from, size_t len)
{
	return copy_plain(before, to, from, len);
}

#endif

uint32_t fm_crc32c_copy_extend(uint32_t before, void *to, const void *from, size_t len)
{
	/* Short copies are soon read again: those stay in the cache. */
	if (len < 65536 || !fm_crc32c_copy_has_narrow())
		return copy_plain(before, to, from, len);
	return fm_crc32c_copy_has_wide() ? fm_crc32c_copy_wide(before, to, from, len)
					 : fm_crc32c_copy_narrow(before, to, from, len);
}
