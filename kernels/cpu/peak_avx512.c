/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The most integer multiply-adds that AVX-512 does, for benchmarks to compare products with. Called
 * through the table in avx512.c. Invariant: nothing but VPDPBUSD on registers stands in the loop.
 */
#include <immintrin.h>

#include "avx512.h"

enum {
	CHAINS = 16, /* more than the instruction's latency times its throughput */
	DOTS = 64,   /* multiply-adds of one instruction */
};

uint64_t fm_avx512_integer_peak(size_t rounds)
{
	__m512i sums[CHAINS], ones = _mm512_set1_epi8(1);

	UNROLL
	for (int i = 0; i < CHAINS; i++)
		sums[i] = _mm512_setzero_si512();
	for (size_t round = 0; round < rounds; round++) {
		UNROLL
		for (int i = 0; i < CHAINS; i++)
			/* In assembly: the compiler would see through the sums. */
			__asm__ volatile("vpdpbusd %1, %1, %0" : "+v"(sums[i]) : "v"(ones));
	}
	return (uint64_t)rounds * CHAINS * DOTS;
}
