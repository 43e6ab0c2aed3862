/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one table of weight formats: how a file stores each and into what shape it is packed. For
 * kernels/ only; the rest asks through the functions of kernels.h. The table is constant and stands
 * in a header, so that code that is made for one format folds it away. Invariant: a packed matrix
 * takes at most 3 % more bytes than the file's (padding to 16 rows aside), and no bit is lost.
 */
#ifndef FM_KERNELS_CPU_FORMATS_H
#define FM_KERNELS_CPU_FORMATS_H

#include <kernels.h>

struct fm_format_traits {
	const char *name;
	uint32_t gguf_type;    /* the file format's number for it */
	uint16_t file_columns; /* of a block in the file, and of a packed one */
	uint16_t file_bytes;   /* of that block, one row */
	uint8_t bits;	       /* of an element; below 16: an unsigned integer */
	uint8_t offset;	       /* what an integer has been raised by */
	uint8_t factors;       /* 8-bit factors of the scale for each 32 columns: 0, 1, or 2 (16
				* columns each) */
	bool has_minimum;      /* w = d * q + m, or (d * factor) * q - m * factor */
};

static const struct fm_format_traits fm_formats[FM_FORMAT_COUNT] = {
	[FM_FORMAT_F32] = {"F32", 0, 32, 128, 32, 0, 0, false},
	[FM_FORMAT_F16] = {"F16", 1, 32, 64, 16, 0, 0, false},
	[FM_FORMAT_BF16] = {"BF16", 30, 32, 64, 16, 0, 0, false},
	[FM_FORMAT_Q8_0] = {"Q8_0", 8, 32, 34, 8, 128, 0, false},
	[FM_FORMAT_Q4_0] = {"Q4_0", 2, 32, 18, 4, 8, 0, false},
	[FM_FORMAT_Q4_1] = {"Q4_1", 3, 32, 20, 4, 0, 0, true},
	[FM_FORMAT_Q5_0] = {"Q5_0", 6, 32, 22, 5, 16, 0, false},
	[FM_FORMAT_Q5_1] = {"Q5_1", 7, 32, 24, 5, 0, 0, true},
	[FM_FORMAT_Q4_K] = {"Q4_K", 12, 256, 144, 4, 0, 1, true},
	[FM_FORMAT_Q5_K] = {"Q5_K", 13, 256, 176, 5, 0, 1, true},
	[FM_FORMAT_Q6_K] = {"Q6_K", 14, 256, 210, 6, 32, 2, false},
	[FM_FORMAT_IQ4_NL] = {"IQ4_NL", 20, 32, 18, 4, 128, 0, false},
};

/* Whose integers, as they are packed, are numbers of values; the offset is that of the values. */
static inline bool fm_format_has_values(enum fm_format format)
{
	return format == FM_FORMAT_IQ4_NL;
}

static const uint8_t fm_format_values[16] = {
	1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241,
};

/* X(name) for each format of integers: what is compiled once for each. */
#define FM_INTEGER_FORMATS(X)                                                                      \
	X(Q8_0) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL)

/*
 * A packed block of integers, 16 rows by file_columns:
 *
 *   half d[16], half m[16] when there is a minimum,
 *   for each 32 columns with factors: int8 of d [16], then of m [16] or of d's second half [16],
 *   for each 32 columns the integers: a byte each, [quad][row][i] for column 4 * quad + i; or
 *     their low 4 bits: byte [quad][row][i] holds column 4 * quad + i in its low half and the
 *     column 16 further in its high half; then, with 5 bits, bit 4 * row + i of the 64-bit word
 *     [quad] is bit 4; with 6 bits, bits 2 * (quad / 2).. of byte [quad % 2][row][i] are bits 4, 5.
 *
 * Floats stand as they are, [column][row].
 */
enum { FM_PACKED_MINIMUM_AT = FM_LANES * 2 };

/* Where the factors of the 32 columns number @index of a packed block stand. */
static inline size_t fm_packed_factors_at(enum fm_format format, size_t index)
{
	size_t each = (fm_formats[format].factors + fm_formats[format].has_minimum) * FM_LANES;

	return (fm_formats[format].has_minimum ? 2 : 1) * FM_LANES * sizeof(uint16_t) +
	       index * each;
}

static inline size_t fm_packed_body_bytes(enum fm_format format)
{
	return (size_t)FM_BLOCK_COLUMNS * FM_LANES * fm_formats[format].bits / 8;
}

/* Where their elements stand. */
static inline size_t fm_packed_body_at(enum fm_format format, size_t index)
{
	size_t header = 0, n = fm_formats[format].file_columns / FM_BLOCK_COLUMNS;

	if (fm_formats[format].bits < 16)
		header = fm_packed_factors_at(format, fm_formats[format].factors ? n : 0);
	return header + index * fm_packed_body_bytes(format);
}

static inline size_t fm_packed_bytes(enum fm_format format)
{
	return fm_packed_body_at(format, fm_formats[format].file_columns / FM_BLOCK_COLUMNS);
}

/* The packed block with the 32 columns number @index of a group; @index becomes their number in
 * it. */
static inline const uint8_t *fm_packed_block(enum fm_format format, const uint8_t *group,
					     size_t *index)
{
	size_t n = fm_formats[format].file_columns / FM_BLOCK_COLUMNS, block = *index / n;

	*index %= n;
	return group + block * fm_packed_bytes(format);
}

/* ---- level matrices ------------------------------------------------------------------------ */

/* X(name) for each format that may be level. */
#define FM_LEVEL_FORMATS(X) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q4_K) X(Q5_K)

/*
 * A level group: for each 32 columns an int16 d for each row, or with a minimum m and d,
 * [row][m, d]; then the integers as above. After the last, a float for each row: its scale.
 */
static inline size_t fm_level_head_bytes(enum fm_format format)
{
	return (fm_formats[format].has_minimum ? 2 : 1) * FM_LANES * sizeof(int16_t);
}

static inline size_t fm_level_block_bytes(enum fm_format format)
{
	return fm_level_head_bytes(format) + fm_packed_body_bytes(format);
}

#endif
