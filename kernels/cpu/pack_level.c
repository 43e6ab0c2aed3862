/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packs level matrices: the float scales of a row's blocks become 16-bit integers times one float,
 * as large as sums allow. Called by pack.c. Invariant: any sum of a row's weights times
 * signed bytes fits 32 bits, and every weight, at any integer that its block could hold, 16.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "formats.h"
#include "half.h"
#include "pack.h"

/* Rounding moves a weight by less than 32: half of d's last bit times up to 31, and m's. */
#define LARGEST 32700.0
/* Times 128 below 2^31, the rounding of 65,536 columns included. */
#define LARGEST_SUM 14.0e6

/* A row's 32 columns in float64: w = d * (q - offset) + m, exact products of the file's numbers. */
struct part {
	double d, m;
	const uint8_t *q;
};

static struct part get_part(enum fm_format format, const struct fm_unpacked *block, size_t i)
{
	const struct fm_format_traits *traits = &fm_formats[format];
	struct part part = {.q = block->q + i * FM_BLOCK_COLUMNS};
	uint16_t half;

	memcpy(&half, block->d, sizeof(half));
	part.d = (double)fm_half_to_float(half);
	if (traits->factors)
		part.d *= block->factors[i][0];
	if (traits->has_minimum) {
		memcpy(&half, block->m, sizeof(half));
		part.m = (double)fm_half_to_float(half);
		if (traits->factors)
			part.m *= -(double)block->factors[i][1];
	}
	return part;
}

/* The row's scale: NaN when a number of the file is none, 0 for a row of (nearly) zeros. */
static float find_scale(enum fm_format format, const uint8_t *row, size_t n_blocks)
{
	const struct fm_format_traits *traits = &fm_formats[format];
	const int highest = (1 << traits->bits) - 1 - traits->offset, lowest = -traits->offset;
	double largest = 0.0, sum = 0.0;

	for (size_t b = 0; b < n_blocks; b++) {
		struct fm_unpacked block;

		fm_unpack(format, row + b * traits->file_bytes, &block);
		for (size_t i = 0; i < traits->file_columns / FM_BLOCK_COLUMNS; i++) {
			struct part part = get_part(format, &block, i);
			double a = fabs(part.d * lowest + part.m);
			double c = fabs(part.d * highest + part.m);

			if (!isfinite(a + c))
				return NAN;
			a = a > fabs(part.m) ? a : fabs(part.m);
			largest = a > largest ? a : largest;
			largest = c > largest ? c : largest;
			for (int j = 0; j < FM_BLOCK_COLUMNS; j++)
				sum += fabs(part.d * (part.q[j] - traits->offset) + part.m);
		}
	}
	largest /= LARGEST;
	sum /= LARGEST_SUM;
	largest = largest > sum ? largest : sum;
	return largest < (double)FLT_MIN ? 0.0f : (float)largest;
}

static int16_t to_integer(double x, float scale)
{
	return scale > 0.0f ? (int16_t)lrint(x / (double)scale) : 0;
}

static void pack_part(enum fm_format format, uint8_t *to, const struct part *part, size_t row,
		      float scale)
{
	const int16_t d = to_integer(part->d, scale), m = to_integer(part->m, scale);

	if (fm_formats[format].has_minimum) {
		memcpy(to + 4 * row, &m, 2);
		memcpy(to + 4 * row + 2, &d, 2);
	} else {
		memcpy(to + 2 * row, &d, 2);
	}
	fm_pack_integers(to + fm_level_head_bytes(format), fm_formats[format].bits, row, part->q);
}

static void pack_row(enum fm_format format, uint8_t *group, size_t row, const uint8_t *from,
		     size_t n_blocks)
{
	const struct fm_format_traits *traits = &fm_formats[format];
	const float scale = find_scale(format, from, n_blocks);

	for (size_t b = 0; b < n_blocks; b++, from += traits->file_bytes) {
		struct fm_unpacked block;

		fm_unpack(format, from, &block);
		for (size_t i = 0; i < traits->file_columns / FM_BLOCK_COLUMNS; i++) {
			struct part part = get_part(format, &block, i);

			pack_part(format, group, &part, row, scale);
			group += fm_level_block_bytes(format);
		}
	}
	memcpy(group + sizeof(scale) * row, &scale, sizeof(scale));
}

void fm_pack_level(const struct fm_matrix *matrix, const uint8_t *tensor, size_t first_group,
		   size_t end_group)
{
	const size_t n_blocks = matrix->columns / fm_formats[matrix->format].file_columns;
	const size_t row_bytes = fm_format_row_bytes(matrix->format, matrix->columns);

	for (size_t row = first_group * FM_LANES; row < end_group * FM_LANES; row++)
		if (row < matrix->rows)
			pack_row(matrix->format,
				 matrix->data + row / FM_LANES * matrix->group_bytes,
				 row % FM_LANES, tensor + row * row_bytes, n_blocks);
}

bool fm_format_may_be_level(enum fm_format format)
{
#define CASE(name) case FM_FORMAT_##name:
	switch (format) {
		FM_LEVEL_FORMATS(CASE)
		return true;
	default:
		return false;
	}
#undef CASE
}

size_t fm_format_level_group_bytes(enum fm_format format, uint32_t columns)
{
	return columns / FM_BLOCK_COLUMNS * fm_level_block_bytes(format) + FM_LANES * sizeof(float);
}
