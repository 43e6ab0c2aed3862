// SPDX-License-Identifier: Apache-2.0
/*
 * Speed of the integer matrix products of one path on one core, for products.py. Prints one JSON
 * object: multiply-adds a second of each shape, and those of the path's multiply instruction alone.
 * Invariant: times are this thread's CPU time, the best of several rounds, since others share the
 * core.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>
#include <kernels.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "timing.h"

enum { ROUNDS = 40, LOOPS = 20000 };

static void *bytes(size_t n)
{
	uint8_t *out = aligned_alloc(64, (n + 63) / 64 * 64);

	if (!out) {
		fprintf(stderr, "product_figures: no memory\n");
		exit(1);
	}
	for (size_t i = 0; i < n; i++)
		out[i] = (uint8_t)(i * 167 >> 3);
	return out;
}

/* ---- the instruction alone ---------------------------------------------------------------- */

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vnni"))) static double vector_loop(void)
{
	__m512i sums[8], a = _mm512_set1_epi32(1), b = _mm512_set1_epi32(2);
	double start = own_time();

#pragma GCC unroll 8
	for (int i = 0; i < 8; i++)
		sums[i] = _mm512_setzero_si512();
	for (int loop = 0; loop < LOOPS; loop++) {
#pragma GCC unroll 8
		for (int i = 0; i < 8; i++) {
			sums[i] = _mm512_dpbusd_epi32(sums[i], a, b);
			__asm__ volatile("" : "+v"(sums[i]));
		}
	}
	return LOOPS * 8 * 64.0 / (own_time() - start);
}

__attribute__((target("amx-tile,amx-int8"))) static double tile_loop(void)
{
	static const uint8_t config[64] = {
		[0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64,
		[48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16};
	double start;

	_tile_loadconfig(config);
	start = own_time();
	for (int loop = 0; loop < LOOPS; loop++) {
		_tile_dpbsud(0, 4, 5);
		_tile_dpbsud(1, 4, 5);
		_tile_dpbsud(2, 4, 5);
		_tile_dpbsud(3, 4, 5);
	}
	start = own_time() - start;
	_tile_release();
	return LOOPS * 4 * 16.0 * 16 * 64 / start;
}
#endif

/* 0 for a path without an instruction that multiplies bytes and adds. */
static double peak(const char *isa)
{
	double best = 0.0;

	(void)isa;
#if defined(__x86_64__)
	for (int round = 0; round < ROUNDS; round++) {
		double rate = !strcmp(isa, "amx")      ? tile_loop()
			      : !strcmp(isa, "avx512") ? vector_loop()
						       : 0.0;

		best = rate > best ? rate : best;
	}
#endif
	return best;
}

/* ---- products ----------------------------------------------------------------------------- */

static double product(const struct fm_kernels *kernels, enum fm_format format, uint32_t rows,
		      uint32_t columns, size_t n, bool is_fine)
{
	struct fm_matrix matrix = {.format = format, .rows = rows, .columns = columns};
	const size_t n_blocks = columns / FM_BLOCK_COLUMNS;
	size_t n_tiles = (n + FM_TILE_TOKENS - 1) / FM_TILE_TOKENS * n_blocks;
	struct fm_tile *tiles = bytes(n_tiles * sizeof(*tiles));
	float *x = bytes(columns * sizeof(*x)), *results = bytes(n * rows * sizeof(*results));
	float **out = bytes(n * sizeof(*out));
	double best = 1e9;

	matrix.group_bytes = fm_format_group_bytes(format, columns);
	matrix.data = bytes(fm_matrix_groups(&matrix) * matrix.group_bytes);
	memset(matrix.data, 0x11, fm_matrix_groups(&matrix) * matrix.group_bytes);
	memset(tiles, 0, n_tiles * sizeof(*tiles));
	for (uint32_t i = 0; i < columns; i++)
		x[i] = (float)(i * 37 % 101) - 50.0f;
	for (size_t i = 0; i < n; i++) {
		out[i] = results + i * rows;
		kernels->quantise(tiles + i / FM_TILE_TOKENS * n_blocks, i % FM_TILE_TOKENS, x,
				  columns, is_fine);
	}
	for (int round = 0; round < ROUNDS; round++) {
		double start = own_time();

		kernels->product_integer(&matrix, 0, fm_matrix_groups(&matrix), tiles, is_fine, n,
					 out);
		start = own_time() - start;
		best = start < best ? start : best;
	}
	free(matrix.data);
	free(tiles);
	free(x);
	free(results);
	free(out);
	return (double)rows * columns * (double)n / best;
}

/* The same for a level matrix. */
static double level_product(const struct fm_kernels *kernels, enum fm_format format, uint32_t rows,
			    uint32_t columns, size_t n)
{
	struct fm_matrix matrix = {
		.format = format, .is_level = true, .rows = rows, .columns = columns};
	size_t n_tiles = fm_level_tiles(columns);
	size_t tiles_bytes =
		(n + FM_TILE_TOKENS - 1) / FM_TILE_TOKENS * n_tiles * sizeof(struct fm_level_tile);
	struct fm_level_tile *tiles = bytes(tiles_bytes);
	float *x = bytes(columns * sizeof(*x)), *results = bytes(n * rows * sizeof(*results));
	float **out = bytes(n * sizeof(*out)), *scales = bytes(n * sizeof(*scales));
	double best = 1e9;

	matrix.group_bytes = fm_format_level_group_bytes(format, columns);
	matrix.data = bytes(fm_matrix_groups(&matrix) * matrix.group_bytes);
	memset(matrix.data, 0x11, fm_matrix_groups(&matrix) * matrix.group_bytes);
	memset(tiles, 0, tiles_bytes);
	for (uint32_t i = 0; i < columns; i++)
		x[i] = (float)(i * 37 % 101) - 50.0f;
	for (size_t i = 0; i < n; i++) {
		out[i] = results + i * rows;
		kernels->quantise_level(tiles + i / FM_TILE_TOKENS * n_tiles, i % FM_TILE_TOKENS, x,
					columns, scales + i);
	}
	for (int round = 0; round < ROUNDS; round++) {
		double start = own_time();

		kernels->product_level(&matrix, 0, fm_matrix_groups(&matrix), tiles, scales, n,
				       out);
		start = own_time() - start;
		best = start < best ? start : best;
	}
	free(matrix.data);
	free(tiles);
	free(x);
	free(results);
	free(scales);
	free(out);
	return (double)rows * columns * (double)n / best;
}

static void print_product(bool is_first, enum fm_format format, uint32_t rows, uint32_t columns,
			  size_t tokens, const char *bits, double rate)
{
	printf("%s\n{\"format\":\"%s\",\"rows\":%u,\"columns\":%u,\"tokens\":%zu,\"bits\":\"%s\","
	       "\"gmac\":%.4g}",
	       is_first ? "" : ",", fm_format_name(format), rows, columns, tokens, bits,
	       rate / 1e9);
}

int main(int argc, char **argv)
{
	static const struct {
		enum fm_format format;
		uint32_t rows, columns;
		size_t tokens;
	} shapes[] = {
		{FM_FORMAT_Q4_1, 1536, 576, 1},	  {FM_FORMAT_Q4_1, 1536, 576, 4},
		{FM_FORMAT_Q4_1, 1536, 576, 6},	  {FM_FORMAT_Q4_1, 1536, 576, 8},
		{FM_FORMAT_Q4_1, 1536, 576, 16},  {FM_FORMAT_Q4_1, 1536, 576, 32},
		{FM_FORMAT_Q4_1, 1536, 576, 256}, {FM_FORMAT_Q4_1, 576, 1536, 256},
		{FM_FORMAT_Q8_0, 1536, 576, 256}, {FM_FORMAT_Q6_K, 1536, 1536, 256},
	};
	const struct fm_kernels *kernels;
	double most;

	if (argc != 2) {
		fprintf(stderr, "usage: product_figures ISA\n");
		return 1;
	}
	if (fm_kernels_select(argv[1], &kernels)) {
		fprintf(stderr, "SKIP: product_figures: %s\n", fm_error_detail());
		return 77;
	}
	most = peak(argv[1]);
	printf("{\"peak\":%.4g,\"products\":[", most / 1e9);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		enum fm_format format = shapes[i].format;
		uint32_t rows = shapes[i].rows, columns = shapes[i].columns;
		size_t tokens = shapes[i].tokens;

		for (int is_fine = 0; is_fine < 2; is_fine++)
			print_product(!i && !is_fine, format, rows, columns, tokens,
				      is_fine ? "16" : "8",
				      product(kernels, format, rows, columns, tokens, is_fine));
		if (fm_format_may_be_level(format))
			print_product(false, format, rows, columns, tokens, "level",
				      level_product(kernels, format, rows, columns, tokens));
	}
	printf("]}\n");
	return 0;
}
