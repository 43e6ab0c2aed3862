/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Integer matrix products of several tokens on AMX tiles: the tiles give the exact integer sums of
 * a block, AVX-512 scales them and adds them up. Called through the table in avx512.c. Invariant: a
 * row's sum takes its blocks in order with the roundings of generic.h, however tokens, groups and
 * columns are cut into passes.
 */
#include <immintrin.h>

#include "amx.h"
#include "avx512.h"
#include "block_avx512.h"
#include "formats.h"

enum {
	TOKENS = FM_TILE_TOKENS,
	STEPS = 48,	  /* unpacked at once: 30 KiB, which stay in the L1 cache */
	AHEAD = 3,	  /* steps that the tiles run before the sums */
	TOKENS_LEAST = 9, /* fewer are faster without tiles */
};

/* What one tile instruction multiplies by: 32 columns of a group, or with two factors 16 of them
 * and zeros in place of the others. */
struct step {
	uint8_t u[FM_BLOCK_COLUMNS / 4][FM_LANES][4];
	float d[FM_LANES], m[FM_LANES];
} __attribute__((aligned(64)));

/* The integer sums of a step: [high, low][token][row]. */
struct dots {
	int32_t of[2][TOKENS][FM_LANES];
} __attribute__((aligned(64)));

struct pass {
	const struct fm_matrix *matrix;
	size_t group;
	uint32_t offset;	     /* what the integers have been raised by */
	unsigned int parts;	     /* steps of 32 columns: 1 or 2 */
	size_t first_block, n_steps; /* of those unpacked */
	struct step steps[STEPS];
};

/* ---- weights ------------------------------------------------------------------------------ */

static void keep(struct step *step, const struct block *block, int first, int end, __m512 d)
{
	for (int quad = 0; quad < 8; quad++)
		_mm512_store_si512(step->u[quad], quad >= first && quad < end
							  ? block->u[quad]
							  : _mm512_setzero_si512());
	_mm512_store_ps(step->d, d);
	_mm512_store_ps(step->m, block->m);
}

INLINE void unpack(enum fm_format format, const uint8_t *group, size_t first, size_t n,
		   struct step *steps)
{
	for (size_t index = first; index < first + n; index++) {
		struct block block;

		load_block(format, group, index, &block);
		if (fm_formats[format].factors == 2) {
			keep(steps++, &block, 0, 4, block.d[0]);
			keep(steps++, &block, 4, 8, block.d[1]);
		} else {
			keep(steps++, &block, 0, 8, block.d[0]);
		}
	}
}

typedef void block_unpack(const uint8_t *group, size_t first, size_t n, struct step *steps);

#define UNPACK(name)                                                                               \
	static void unpack_##name(const uint8_t *group, size_t first, size_t n,                    \
				  struct step *steps)                                              \
	{                                                                                          \
		unpack(FM_FORMAT_##name, group, first, n, steps);                                  \
	}
FM_INTEGER_FORMATS(UNPACK)

#define ROW(name) [FM_FORMAT_##name] = unpack_##name,
static block_unpack *const unpacks[FM_FORMAT_COUNT] = {FM_INTEGER_FORMATS(ROW)};
#undef ROW

/* ---- tiles -------------------------------------------------------------------------------- */

/* Tiles 0 and 1 are the high and low sums of an even step, 2 and 3 of an odd one, 4 and 5
 * activations (high, low), 6 and 7 weights of even and odd steps. */
struct tile_config {
	uint8_t palette, start_row, reserved[14];
	uint16_t row_bytes[16];
	uint8_t rows[16];
};

static void configure_tiles(void)
{
	const struct tile_config config = {
		.palette = 1,
		.row_bytes = {64, 64, 64, 64, FM_BLOCK_COLUMNS, FM_BLOCK_COLUMNS, 64, 64},
		.rows = {TOKENS, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS, FM_BLOCK_COLUMNS / 4,
			 FM_BLOCK_COLUMNS / 4},
	};

	/* The compilers do not see that the instruction reads all of it. */
	__asm__ volatile("" : : "r"(&config) : "memory");
	_tile_loadconfig(&config);
}

/* A tile of sums is stored one step after its product: a store waits long for the product, which
 * others may use. */
#define MULTIPLY(sums, a, b)                                                                       \
	do {                                                                                       \
		_tile_zero(sums);                                                                  \
		_tile_dpbsud(sums, a, b);                                                          \
	} while (0)

INLINE void multiply(bool is_odd, bool is_low, const struct step *step,
		     const int8_t (*q)[FM_BLOCK_COLUMNS])
{
	if (is_low)
		_tile_loadd(5, q, FM_BLOCK_COLUMNS);
	else
		_tile_loadd(4, q, FM_BLOCK_COLUMNS);
	if (!is_odd && !is_low) {
		_tile_loadd(6, step->u, 64);
		MULTIPLY(0, 4, 6);
	} else if (!is_odd) {
		MULTIPLY(1, 5, 6);
	} else if (!is_low) {
		_tile_loadd(7, step->u, 64);
		MULTIPLY(2, 4, 7);
	} else {
		MULTIPLY(3, 5, 7);
	}
}

INLINE void store_dots(bool is_odd, bool is_low, struct dots *dots)
{
	if (!is_odd && !is_low)
		_tile_stored(0, dots->of[0], 64);
	else if (!is_odd)
		_tile_stored(1, dots->of[1], 64);
	else if (!is_low)
		_tile_stored(2, dots->of[0], 64);
	else
		_tile_stored(3, dots->of[1], 64);
}

/* ---- products ----------------------------------------------------------------------------- */

/* Takes the dots of tokens first..end of a step into the sums. */
INLINE void accumulate(bool has_minimum, bool is_fine, const struct pass *pass, size_t number,
		       const struct fm_tile *tile, const struct dots *dots, size_t first,
		       size_t end, __m512 *sums)
{
	const struct step *step = &pass->steps[number];
	const __m512 d = _mm512_load_ps(step->d), m = _mm512_load_ps(step->m);

	UNROLL
	for (size_t t = first; t < end; t++) {
		__m512i total = _mm512_load_si512(dots->of[0][t]);
		__m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(tile->scale[t]));

		if (is_fine)
			total = _mm512_add_epi32(_mm512_slli_epi32(total, 8),
						 _mm512_load_si512(dots->of[1][t]));
		if (!has_minimum) {
			uint32_t sum = (uint32_t)tile->sum[t], half = (uint32_t)tile->half_sum[t];

			sum = pass->parts == 1 ? sum : number % 2 ? sum - half : half;
			total = _mm512_sub_epi32(total,
						 _mm512_set1_epi32((int)(pass->offset * sum)));
		}
		sums[t] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(total), sums[t]);
		if (has_minimum)
			sums[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(tile->scaled_sum[t]), sums[t]);
	}
}

/* Multiplies step @number, stores the dots of the one before it, and takes those of AHEAD before it
 * into the sums: so nobody waits for a tile. */
INLINE void advance(bool has_minimum, bool is_fine, bool is_odd, const struct pass *pass,
		    const struct fm_tile *tiles, size_t number, struct dots *dots, __m512 *sums)
{
	const size_t behind = number - AHEAD, n = pass->n_steps;
	const struct fm_tile *tile = tiles + number / pass->parts;
	const struct fm_tile *tile_behind = tiles + behind / pass->parts;

	UNROLL
	for (int part = 0; part < 2; part++) {
		if (number < n && (is_fine || !part))
			multiply(is_odd, part, &pass->steps[number], tile->q[part]);
		if (number - 1 < n && (is_fine || !part))
			store_dots(!is_odd, part, &dots[(number - 1) % (AHEAD + 1)]);
		if (behind < n)
			accumulate(has_minimum, is_fine, pass, behind, tile_behind,
				   &dots[behind % (AHEAD + 1)], (size_t)part * TOKENS / 2,
				   (size_t)(part + 1) * TOKENS / 2, sums);
	}
}

/* The unpacked steps by the first @n tokens of a tile row. */
INLINE void run_steps(bool has_minimum, bool is_fine, const struct pass *pass,
		      const struct fm_tile *tiles, size_t n, float *const *out)
{
	struct dots dots[AHEAD + 1]; /* 8 KiB */
	__m512 sums[TOKENS];

	UNROLL
	for (size_t t = 0; t < TOKENS; t++)
		sums[t] = pass->first_block && t < n
				  ? _mm512_maskz_loadu_ps(row_mask(pass->matrix, pass->group),
							  out[t] + pass->group * FM_LANES)
				  : _mm512_setzero_ps();
	for (size_t step = 0; step < pass->n_steps + AHEAD; step += 2) {
		advance(has_minimum, is_fine, false, pass, tiles, step, dots, sums);
		advance(has_minimum, is_fine, true, pass, tiles, step + 1, dots, sums);
	}
	UNROLL
	for (size_t t = 0; t < TOKENS; t++)
		if (t < n)
			store(pass->matrix, pass->group, sums[t], out[t]);
}

typedef void product_steps(const struct pass *pass, const struct fm_tile *tiles, size_t n,
			   float *const *out);

#define STEPS_OF(name, has_minimum, is_fine)                                                       \
	static void name(const struct pass *pass, const struct fm_tile *tiles, size_t n,           \
			 float *const *out)                                                        \
	{                                                                                          \
		run_steps(has_minimum, is_fine, pass, tiles, n, out);                              \
	}
STEPS_OF(raised_coarse, false, false)
STEPS_OF(raised_fine, false, true)
STEPS_OF(minimum_coarse, true, false)
STEPS_OF(minimum_fine, true, true)

static product_steps *const products[2][2] = {
	{raised_coarse, raised_fine},
	{minimum_coarse, minimum_fine},
};

/* Unpacks what it can of a group from block @first on, and multiplies all tokens by it; returns the
 * blocks done. */
static size_t run_pass(struct pass *pass, size_t first, const struct fm_tile *tiles, bool is_fine,
		       size_t n_tokens, float *const *out)
{
	const struct fm_matrix *matrix = pass->matrix;
	const size_t n_blocks = matrix->columns / FM_BLOCK_COLUMNS;
	const size_t left = n_blocks - first, most = STEPS / pass->parts;
	const size_t n = left < most ? left : most;

	pass->first_block = first;
	pass->n_steps = n * pass->parts;
	unpacks[matrix->format](matrix->data + pass->group * matrix->group_bytes, first, n,
				pass->steps);
	/* The compilers do not see that tile loads read them. */
	__asm__ volatile("" : : "r"(pass) : "memory");
	tiles += first;
	for (size_t token = 0; token < n_tokens; token += TOKENS, tiles += n_blocks)
		products[fm_formats[matrix->format].has_minimum][is_fine](
			pass, tiles, n_tokens - token < TOKENS ? n_tokens - token : TOKENS,
			out + token);
	return n;
}

void fm_amx_product_integer(const struct fm_matrix *matrix, size_t first_group, size_t end_group,
			    const struct fm_tile *tiles, bool is_fine, size_t n_tokens,
			    float *const *out)
{
	const struct fm_format_traits *traits = &fm_formats[matrix->format];
	const size_t n_blocks = matrix->columns / FM_BLOCK_COLUMNS, rest = n_tokens % TOKENS;
	struct pass pass; /* the steps are written before they are read */

	if (rest && rest < TOKENS_LEAST) {
		n_tokens -= rest;
		fm_avx512_product_integer(matrix, first_group, end_group,
					  tiles + n_tokens / TOKENS * n_blocks, is_fine, rest,
					  out + n_tokens);
	}
	if (!n_tokens)
		return;
	pass.matrix = matrix;
	pass.offset = traits->offset;
	pass.parts = traits->factors == 2 ? 2 : 1;
	configure_tiles();
	for (pass.group = first_group; pass.group < end_group; pass.group++)
		for (size_t block = 0; block < n_blocks;)
			block += run_pass(&pass, block, tiles, is_fine, n_tokens, out);
	_tile_release();
}
