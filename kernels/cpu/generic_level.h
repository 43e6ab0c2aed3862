/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Level products in plain C: the part of the arithmetic contract where all sums are of integers.
 * Included by generic.h only. Invariant: integers are exact (32 bits, in which what does not fit
 * wraps, and fm_matrix_pack() sees to it that sums fit); a result is rounded where finish() says.
 */
#ifndef FM_KERNELS_CPU_GENERIC_LEVEL_H
#define FM_KERNELS_CPU_GENERIC_LEVEL_H

/* Rows whose largest is smaller count as zeros: the inverse of their scale may be infinite. */
#define FM_LEVEL_LEAST 1e-30f
/* 127 * 256: both bytes fit. */
#define FM_LEVEL_RANGE 32512.0f

FM_GENERIC void fm_generic_quantise_level(struct fm_level_tile *tiles, size_t token, const float *x,
					  size_t n, float *scale)
{
	float largest = 0.0f, inverse;

	for (size_t i = 0; i < n; i++)
		largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
	inverse = largest >= FM_LEVEL_LEAST ? FM_LEVEL_RANGE / largest : 0.0f;
	*scale = largest / FM_LEVEL_RANGE;
	for (size_t i = 0; i < n; i += FM_BLOCK_COLUMNS) {
		struct fm_level_tile *tile = tiles + i / FM_LEVEL_COLUMNS;
		const size_t half = i / FM_BLOCK_COLUMNS % 2, at = half * FM_BLOCK_COLUMNS;
		uint32_t sums[2] = {0};

		for (size_t j = 0; j < FM_BLOCK_COLUMNS; j++) {
			float shifted = fmaf(x[i + j], inverse, FM_ROUND_MAGIC);
			uint32_t value = fm_float_bits(shifted) - fm_float_bits(FM_ROUND_MAGIC);
			int8_t high = (int8_t)((int32_t)(value + 128) >> 8), low = (int8_t)value;

			tile->q[0][token][at + j] = high;
			tile->q[1][token][at + j] = low;
			sums[0] += (uint32_t)high;
			sums[1] += (uint32_t)low;
		}
		for (int byte = 0; byte < 2; byte++)
			tile->sum[byte][half][token][0] = (int16_t)sums[byte];
	}
}

/* 32 columns of a level group's rows: d * (q - offset) + m. */
static inline void fm_generic_level_block(enum fm_format format, const uint8_t *at,
					  int32_t (*w)[FM_LANES])
{
	const int offset = fm_formats[format].offset;
	struct fm_block block;

	fm_generic_integers(format, at + fm_level_head_bytes(format), &block);
	for (int lane = 0; lane < FM_LANES; lane++) {
		int16_t d, m = 0;

		if (fm_formats[format].has_minimum) {
			memcpy(&m, at + 4 * lane, sizeof(m));
			memcpy(&d, at + 4 * lane + 2, sizeof(d));
		} else {
			memcpy(&d, at + 2 * lane, sizeof(d));
		}
		for (int column = 0; column < FM_BLOCK_COLUMNS; column++)
			w[column][lane] = d * (block.u[column / 4][lane][column % 4] - offset) + m;
	}
}

/* Sums of the weights times the high bytes, and times the low ones. */
struct fm_level_sums {
	uint32_t of[2][FM_LANES];
};

static inline void fm_generic_level_accumulate(int32_t (*w)[FM_LANES],
					       const struct fm_level_tile *tile, size_t token,
					       size_t first, struct fm_level_sums *sums)
{
	for (int byte = 0; byte < 2; byte++) {
		const int8_t *q = tile->q[byte][token] + first;

		for (int column = 0; column < FM_BLOCK_COLUMNS; column++)
			for (int lane = 0; lane < FM_LANES; lane++)
				sums->of[byte][lane] += (uint32_t)(q[column] * w[column][lane]);
	}
}

/* The sum as one integer of up to 40 bits, rounded to float; times the product of the scales. */
static inline void fm_generic_level_finish(const struct fm_level_sums *sums, const float *row_scale,
					   float scale, float *out)
{
	for (int lane = 0; lane < FM_LANES; lane++) {
		int64_t sum =
			(int64_t)(int32_t)sums->of[0][lane] * 256 + (int32_t)sums->of[1][lane];

		out[lane] = (float)sum * (row_scale[lane] * scale);
	}
}

FM_GENERIC void fm_generic_product_level(const struct fm_matrix *matrix, size_t first_group,
					 size_t end_group, const struct fm_level_tile *tiles,
					 const float *scales, size_t n_tokens, float *const *out)
{
	const size_t n_blocks = matrix->columns / FM_BLOCK_COLUMNS;
	const size_t n_tiles = fm_level_tiles(matrix->columns);
	const size_t block_bytes = fm_level_block_bytes(matrix->format);

	for (size_t group = first_group; group < end_group; group++) {
		const uint8_t *data = matrix->data + group * matrix->group_bytes;
		float row_scale[FM_LANES], results[FM_LANES];

		memcpy(row_scale, data + n_blocks * block_bytes, sizeof(row_scale));
		for (size_t first = 0; first < n_tokens; first += FM_TILE_TOKENS) {
			const struct fm_level_tile *tile = tiles + first / FM_TILE_TOKENS * n_tiles;
			struct fm_level_sums sums[FM_TILE_TOKENS] = {0};
			size_t n = n_tokens - first;

			n = n < FM_TILE_TOKENS ? n : FM_TILE_TOKENS;
			for (size_t index = 0; index < n_blocks; index++) {
				int32_t w[FM_BLOCK_COLUMNS][FM_LANES];

				fm_generic_level_block(matrix->format, data + index * block_bytes,
						       w);
				for (size_t token = 0; token < n; token++)
					fm_generic_level_accumulate(w, tile + index / 2, token,
								    index % 2 * FM_BLOCK_COLUMNS,
								    &sums[token]);
			}
			for (size_t token = 0; token < n; token++) {
				fm_generic_level_finish(&sums[token], row_scale,
							scales[first + token], results);
				fm_generic_store(matrix, group, results, out[first + token]);
			}
		}
	}
}

#endif
