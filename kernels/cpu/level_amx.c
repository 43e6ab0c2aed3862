/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Level products of several tokens on AMX tiles: a group's weights become 16 bits, as high and low
 * bytes, once for all tokens, and the tiles add up all columns. Called through the table in
 * avx512.c. Invariant: integers are exact, so no order shows; floats are rounded as in
 * generic_level.h.
 */
#include <immintrin.h>
#include <string.h>

#include "amx.h"
#include "avx512.h"
#include "block_avx512.h"
#include "generic.h"
#include "level_avx512.h"

enum {
	TOKENS = FM_TILE_TOKENS,
	COLUMNS = FM_LEVEL_COLUMNS,
	STEPS = 24,	  /* of 64 columns, unpacked at once: 48 KiB */
	TOKEN_TILES = 16, /* whose sums wait between two parts of the columns */
	TOKENS_LEAST = 7, /* fewer are faster without tiles */
};

/* 64 columns of a group's rows: high bytes (signed) and low bytes, [quad of columns][row][i]. */
struct step {
	uint8_t w[2][COLUMNS / 4][FM_LANES][4];
} __attribute__((aligned(64)));

/* Sums of activations' high and low bytes times weights' high and low ones: [token][row]. */
struct dots {
	int32_t of[2][2][TOKENS][FM_LANES];
} __attribute__((aligned(64)));

struct pass {
	const struct fm_matrix *matrix;
	size_t group, n_steps;
	size_t per_step;	/* tokens finished in each step */
	bool is_first, is_last; /* part of the columns */
	__m512 row_scale;
	struct step steps[STEPS];
	struct dots dots[TOKEN_TILES];
};

/* ---- weights ----------------------------------------------------------------------------------
 */

/* d and m of 16 rows as the words that _mm512_unpacklo_epi8 and -hi leave the rows in. */
struct factors {
	__m512i d[2], m[2];
};

INLINE __m512i word_order(int first_row, int step, int offset)
{
	_Alignas(64) int16_t words[32];

	for (int lane = 0; lane < 4; lane++)
		for (int i = 0; i < 8; i++)
			words[lane * 8 + i] =
				(int16_t)((lane * 4 + first_row + i / 4) * step + offset);
	return _mm512_load_si512(words);
}

INLINE void load_factors(enum fm_format format, const uint8_t *at, struct factors *factors)
{
	UNROLL
	for (int half = 0; half < 2; half++) {
		if (fm_formats[format].has_minimum) {
			__m512i pairs = _mm512_loadu_si512(at);

			factors->m[half] =
				_mm512_permutexvar_epi16(word_order(2 * half, 2, 0), pairs);
			factors->d[half] =
				_mm512_permutexvar_epi16(word_order(2 * half, 2, 1), pairs);
		} else {
			__m512i d = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)at));

			factors->d[half] = _mm512_permutexvar_epi16(word_order(2 * half, 1, 0), d);
			factors->m[half] = _mm512_mullo_epi16(
				factors->d[half], _mm512_set1_epi16(-fm_formats[format].offset));
		}
	}
}

/* d * u + m of four columns, to high and low bytes. */
INLINE void unpack_quad(__m512i u, const struct factors *factors, uint8_t *high, uint8_t *low)
{
	const __m512i zero = _mm512_setzero_si512(), byte = _mm512_set1_epi16(255);
	__m512i a = _mm512_unpacklo_epi8(u, zero), b = _mm512_unpackhi_epi8(u, zero);

	a = _mm512_add_epi16(_mm512_mullo_epi16(a, factors->d[0]), factors->m[0]);
	b = _mm512_add_epi16(_mm512_mullo_epi16(b, factors->d[1]), factors->m[1]);
	_mm512_store_si512(high,
			   _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8)));
	_mm512_store_si512(
		low, _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte)));
}

INLINE void unpack(enum fm_format format, const uint8_t *at, size_t n_blocks, struct step *step)
{
	for (size_t index = 0; index < n_blocks; index++, at += fm_level_block_bytes(format)) {
		struct block block;
		struct factors factors;

		fetch_ahead(at, fm_level_block_bytes(format));
		load_factors(format, at, &factors);
		load_integers(fm_formats[format].bits, &block, at + fm_level_head_bytes(format));
		UNROLL
		for (size_t quad = 0; quad < 8; quad++)
			unpack_quad(block.u[quad], &factors,
				    step[index / 2].w[0][index % 2 * 8 + quad][0],
				    step[index / 2].w[1][index % 2 * 8 + quad][0]);
	}
	if (n_blocks % 2)
		for (int byte = 0; byte < 2; byte++)
			memset(step[n_blocks / 2].w[byte][8], 0, sizeof(step->w[byte]) / 2);
}

typedef void level_unpack(const uint8_t *at, size_t n_blocks, struct step *steps);

#define UNPACK(name)                                                                               \
	static void unpack_##name(const uint8_t *at, size_t n_blocks, struct step *steps)          \
	{                                                                                          \
		unpack(FM_FORMAT_##name, at, n_blocks, steps);                                     \
	}
FM_LEVEL_FORMATS(UNPACK)

#define ROW(name) [FM_FORMAT_##name] = unpack_##name,
static level_unpack *const unpacks[FM_FORMAT_COUNT] = {FM_LEVEL_FORMATS(ROW)};
#undef ROW

/* ---- tiles ------------------------------------------------------------------------------------
 */

/* Tiles 0 to 3 are the sums (high by high, high by low, low by high, low by low), 4 and 5
 * activations (high, low), 6 and 7 weights: four chains, as many as the latency takes. */
static void configure_tiles(void)
{
	struct {
		uint8_t palette, start_row, reserved[14];
		uint16_t row_bytes[16];
		uint8_t rows[16];
	} config = {
		.palette = 1,
		.row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
		.rows = {16, 16, 16, 16, 16, 16, 16, 16},
	};

	/* The compilers do not see that the instruction reads all of it. */
	__asm__ volatile("" : : "r"(&config) : "memory");
	_tile_loadconfig(&config);
}

static void load_dots(const struct dots *dots)
{
	_tile_loadd(0, dots->of[0][0], 64);
	_tile_loadd(1, dots->of[0][1], 64);
	_tile_loadd(2, dots->of[1][0], 64);
	_tile_loadd(3, dots->of[1][1], 64);
}

static void store_dots(struct dots *dots)
{
	_tile_stored(0, dots->of[0][0], 64);
	_tile_stored(1, dots->of[0][1], 64);
	_tile_stored(2, dots->of[1][0], 64);
	_tile_stored(3, dots->of[1][1], 64);
}

/* ---- products ---------------------------------------------------------------------------------
 */

/* Sums of a tile row that are ready: what becomes of them. */
struct finish {
	const struct dots *dots;
	const float *scales;
	float *const *out;
	size_t n, done; /* tokens */
};

/* Finishes tokens up to @end. */
INLINE void finish_until(const struct pass *pass, struct finish *finish, size_t end)
{
	for (; finish->done < end && finish->done < finish->n; finish->done++) {
		const size_t t = finish->done;
		__m512i sums[2];

		UNROLL
		for (int byte = 0; byte < 2; byte++) {
			__m512i high = _mm512_load_si512(finish->dots->of[byte][0][t]);

			sums[byte] =
				_mm512_add_epi32(_mm512_slli_epi32(high, 8),
						 _mm512_load_si512(finish->dots->of[byte][1][t]));
		}
		store(pass->matrix, pass->group,
		      finish_level(sums[0], sums[1], pass->row_scale, finish->scales[t]),
		      finish->out[t]);
	}
}

/* The steps' columns by one tile row of activations. Between them the vectors finish the row
 * before, which would come too late otherwise: a processor looks ahead only so far. */
static void multiply(const struct pass *pass, const struct fm_level_tile *tile, struct dots *dots,
		     struct finish *before)
{
	if (pass->is_first) {
		_tile_zero(0);
		_tile_zero(1);
		_tile_zero(2);
		_tile_zero(3);
	} else {
		load_dots(dots);
	}
	for (size_t i = 0; i < pass->n_steps; i++, tile++) {
		_tile_loadd(4, tile->q[0], COLUMNS);
		_tile_loadd(6, pass->steps[i].w[0], 64);
		_tile_dpbssd(0, 4, 6);
		_tile_loadd(7, pass->steps[i].w[1], 64);
		_tile_dpbsud(1, 4, 7);
		_tile_loadd(5, tile->q[1], COLUMNS);
		_tile_dpbssd(2, 5, 6);
		_tile_dpbsud(3, 5, 7);
		finish_until(pass, before, (i + 1) * pass->per_step);
	}
	store_dots(dots);
}

/* One group by up to TOKEN_TILES tile rows. Tiles run while the vectors finish the row before. */
static void run_group(struct pass *pass, const struct fm_level_tile *tiles, const float *scales,
		      size_t n_tokens, float *const *out)
{
	const struct fm_matrix *matrix = pass->matrix;
	const size_t n_blocks = matrix->columns / FM_BLOCK_COLUMNS;
	const size_t n_tiles = fm_level_tiles(matrix->columns);
	const uint8_t *data = matrix->data + pass->group * matrix->group_bytes;
	const size_t block_bytes = fm_level_block_bytes(matrix->format);
	struct finish before = {0};

	pass->row_scale = _mm512_loadu_ps(data + n_blocks * block_bytes);
	for (size_t first = 0; first < n_blocks; first += 2 * STEPS) {
		const size_t left = n_blocks - first, n = left < 2 * STEPS ? left : 2 * STEPS;

		unpacks[matrix->format](data + first * block_bytes, n, pass->steps);
		pass->n_steps = (n + 1) / 2;
		pass->per_step = (TOKENS + pass->n_steps - 1) / pass->n_steps;
		pass->is_first = first == 0;
		pass->is_last = n == left;
		/* The compilers do not see that tile loads read them. */
		__asm__ volatile("" : : "r"(pass) : "memory");
		for (size_t token = 0; token < n_tokens; token += TOKENS) {
			struct dots *dots = &pass->dots[token / TOKENS];

			multiply(pass, tiles + token / TOKENS * n_tiles + first / 2, dots, &before);
			if (pass->is_last)
				before = (struct finish){
					.dots = dots,
					.scales = scales + token,
					.out = out + token,
					.n = n_tokens - token < TOKENS ? n_tokens - token : TOKENS,
				};
		}
	}
	finish_until(pass, &before, TOKENS);
}

void fm_amx_product_level(const struct fm_matrix *matrix, size_t first_group, size_t end_group,
			  const struct fm_level_tile *tiles, const float *scales, size_t n_tokens,
			  float *const *out)
{
	const size_t n_tiles = fm_level_tiles(matrix->columns), rest = n_tokens % TOKENS;
	struct pass pass; /* the steps are written before they are read */

	if (rest && rest < TOKENS_LEAST) {
		n_tokens -= rest;
		fm_avx512_product_level(matrix, first_group, end_group,
					tiles + n_tokens / TOKENS * n_tiles, scales + n_tokens,
					rest, out + n_tokens);
	}
	if (!n_tokens)
		return;
	pass.matrix = matrix;
	configure_tiles();
	for (size_t first = 0; first < n_tokens; first += TOKEN_TILES * TOKENS) {
		size_t n = n_tokens - first;

		n = n < TOKEN_TILES * TOKENS ? n : TOKEN_TILES * TOKENS;
		for (pass.group = first_group; pass.group < end_group; pass.group++)
			run_group(&pass, tiles + first / TOKENS * n_tiles, scales + first, n,
				  out + first);
	}
	_tile_release();
}
