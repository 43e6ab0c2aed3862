/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers about weight formats, and how rows as GGUF stores them are packed into groups of 16: a
 * block of the file is read into integers and scales, one function for each format, and those are
 * written in the shape that formats.h describes. Called when a model is opened. Invariant: packing
 * moves bits and loses none.
 */
#include <string.h>

#include <kernels.h>

#include "formats.h"
#include "half.h"
#include "pack.h"

size_t fm_format_group_bytes(enum fm_format format, uint32_t columns)
{
	return (size_t)columns / fm_formats[format].file_columns * fm_packed_bytes(format);
}

size_t fm_format_row_bytes(enum fm_format format, uint32_t columns)
{
	return (size_t)columns / fm_formats[format].file_columns * fm_formats[format].file_bytes;
}

const char *fm_format_name(enum fm_format format)
{
	return fm_formats[format].name;
}

bool fm_format_is_quantised(enum fm_format format)
{
	return fm_formats[format].bits < 16;
}

bool fm_format_find(uint32_t gguf_type, enum fm_format *out)
{
	for (int i = 0; i < FM_FORMAT_COUNT; i++) {
		if (fm_formats[i].gguf_type != gguf_type)
			continue;
		*out = (enum fm_format)i;
		return true;
	}
	return false;
}

/* ---- the file's blocks -------------------------------------------------------------------- */

static void read_q8_0(const uint8_t *from, struct fm_unpacked *out)
{
	out->d = from;
	for (int i = 0; i < 32; i++)
		out->q[i] = from[2 + i] ^ 0x80; /* adds 128 */
}

static void read_nibbles(const uint8_t *from, uint8_t *q, int n)
{
	for (int i = 0; i < n; i++) {
		q[i] = from[i] & 15;
		q[i + n] = from[i] >> 4;
	}
}

/* Bit i of 32 is bit 4 of integer i; four at a time, spread to one byte each. */
static void read_fifth_bits(const uint8_t *from, uint8_t *q)
{
	uint32_t bits, four;

	memcpy(&bits, from, sizeof(bits));
	for (int i = 0; i < 8; i++) {
		memcpy(&four, q + 4 * i, sizeof(four));
		four |= ((bits >> 4 * i & 15) * 0x00204081u & 0x01010101u) << 4;
		memcpy(q + 4 * i, &four, sizeof(four));
	}
}

static void read_q4_0(const uint8_t *from, struct fm_unpacked *out)
{
	out->d = from;
	read_nibbles(from + 2, out->q, 16);
}

static void read_q4_1(const uint8_t *from, struct fm_unpacked *out)
{
	out->d = from;
	out->m = from + 2;
	read_nibbles(from + 4, out->q, 16);
}

static void read_q5_0(const uint8_t *from, struct fm_unpacked *out)
{
	out->d = from;
	read_nibbles(from + 6, out->q, 16);
	read_fifth_bits(from + 2, out->q);
}

static void read_q5_1(const uint8_t *from, struct fm_unpacked *out)
{
	out->d = from;
	out->m = from + 2;
	read_nibbles(from + 8, out->q, 16);
	read_fifth_bits(from + 4, out->q);
}

/* d, m, and 8 pairs of 6-bit factors in 12 bytes: the first four pairs in the low bits of bytes
 * 0..7; the others have 4 bits in bytes 8..11 and 2 in the high bits of bytes 0..7. */
static void read_k_scales(const uint8_t *from, struct fm_unpacked *out)
{
	const uint8_t *bytes = from + 4;

	out->d = from;
	out->m = from + 2;
	for (int i = 0; i < 4; i++) {
		out->factors[i][0] = bytes[i] & 63;
		out->factors[i][1] = bytes[4 + i] & 63;
		out->factors[4 + i][0] = (uint8_t)((bytes[8 + i] & 15) | bytes[i] >> 6 << 4);
		out->factors[4 + i][1] = (uint8_t)(bytes[8 + i] >> 4 | bytes[4 + i] >> 6 << 4);
	}
}

static void read_q4_k(const uint8_t *from, struct fm_unpacked *out)
{
	read_k_scales(from, out);
	for (int i = 0; i < 4; i++)
		read_nibbles(from + 16 + 32 * i, out->q + 64 * i, 32);
}

static void read_q5_k(const uint8_t *from, struct fm_unpacked *out)
{
	read_k_scales(from, out);
	for (int i = 0; i < 4; i++)
		read_nibbles(from + 48 + 32 * i, out->q + 64 * i, 32);
	/* Bit i of byte j is bit 4 of integer 32 * i + j. */
	for (int i = 0; i < 8; i++)
		for (int j = 0; j < 32; j++)
			out->q[32 * i + j] |= (uint8_t)((from[16 + j] >> i & 1) << 4);
}

static void read_q6_k(const uint8_t *from, struct fm_unpacked *out)
{
	for (int half = 0; half < 2; half++) {
		const uint8_t *high = from + 128 + 32 * half;
		uint8_t *q = out->q + 128 * half;

		read_nibbles(from + 64 * half, q, 64);
		/* Bits 2 * i.. of byte j are bits 4 and 5 of integer 32 * i + j. */
		for (int i = 0; i < 4; i++)
			for (int j = 0; j < 32; j++)
				q[32 * i + j] |= (uint8_t)((high[j] >> 2 * i & 3) << 4);
	}
	memcpy(out->factors, from + 192, 16);
	out->d = from + 208;
}

static void (*const readers[FM_FORMAT_COUNT])(const uint8_t *from, struct fm_unpacked *out) = {
	[FM_FORMAT_Q8_0] = read_q8_0, [FM_FORMAT_Q4_0] = read_q4_0, [FM_FORMAT_Q4_1] = read_q4_1,
	[FM_FORMAT_Q5_0] = read_q5_0, [FM_FORMAT_Q5_1] = read_q5_1, [FM_FORMAT_Q4_K] = read_q4_k,
	[FM_FORMAT_Q5_K] = read_q5_k, [FM_FORMAT_Q6_K] = read_q6_k,
	[FM_FORMAT_IQ4_NL] = read_q4_0,
};

/* ---- packed blocks ------------------------------------------------------------------------ */

/* Elements of @size bytes, [column][row]. */
static void pack_elements(uint8_t *to, const uint8_t *from, size_t row, size_t size)
{
	for (size_t i = 0; i < FM_BLOCK_COLUMNS; i++)
		memcpy(to + (i * FM_LANES + row) * size, from + i * size, size);
}

void fm_unpack(enum fm_format format, const uint8_t *from, struct fm_unpacked *out)
{
	readers[format](from, out);
}

/* Four at a time. */
void fm_pack_integers(uint8_t *body, unsigned int bits, size_t row, const uint8_t *q)
{
	enum { QUAD = FM_LANES * 4 }; /* bytes of four columns */
	uint8_t *at = body + row * 4, *high = body + 4 * QUAD;
	uint32_t quads[8], low, plane;

	memcpy(quads, q, sizeof(quads));
	if (bits == 8) {
		for (int i = 0; i < 8; i++)
			memcpy(at + i * QUAD, &quads[i], 4);
		return;
	}
	for (int i = 0; i < 4; i++) {
		low = (quads[i] & 0x0f0f0f0f) | (quads[i + 4] & 0x0f0f0f0f) << 4;
		memcpy(at + i * QUAD, &low, 4);
	}
	for (int i = 0; bits == 5 && i < 8; i++) {
		/* Bit 4 of each of the four, gathered into four bits of the highest byte. */
		low = (quads[i] >> 4 & 0x01010101) * 0x01020408u >> 24;
		high[i * (QUAD / 8) + row / 2] |= (uint8_t)(low << row % 2 * 4);
	}
	for (int i = 0; bits == 6 && i < 2; i++) {
		plane = 0;
		for (int j = 0; j < 4; j++)
			plane |= (quads[2 * j + i] >> 4 & 0x03030303) << 2 * j;
		memcpy(high + i * QUAD + row * 4, &plane, 4);
	}
}

static void pack_block(enum fm_format format, uint8_t *to, const uint8_t *from, size_t row)
{
	const struct fm_format_traits *traits = &fm_formats[format];
	struct fm_unpacked block;

	if (traits->bits >= 16) {
		pack_elements(to, from, row, traits->bits / 8);
		return;
	}
	readers[format](from, &block);
	memcpy(to + 2 * row, block.d, 2);
	if (traits->has_minimum)
		memcpy(to + FM_PACKED_MINIMUM_AT + 2 * row, block.m, 2);
	for (size_t i = 0; i < traits->file_columns / FM_BLOCK_COLUMNS; i++) {
		uint8_t *factors = to + fm_packed_factors_at(format, i);

		if (traits->factors) {
			factors[row] = block.factors[i][0];
			factors[row + FM_LANES] = block.factors[i][1];
		}
		fm_pack_integers(to + fm_packed_body_at(format, i), traits->bits, row,
				 block.q + i * FM_BLOCK_COLUMNS);
	}
}

void fm_matrix_pack(const struct fm_matrix *matrix, const void *tensor, size_t first_group,
		    size_t end_group)
{
	const size_t file_bytes = fm_formats[matrix->format].file_bytes;
	const size_t packed_bytes = fm_packed_bytes(matrix->format);
	const size_t n_blocks = matrix->columns / fm_formats[matrix->format].file_columns;

	if (matrix->is_level) {
		fm_pack_level(matrix, tensor, first_group, end_group);
		return;
	}
	for (size_t group = first_group; group < end_group; group++) {
		uint8_t *to = matrix->data + group * matrix->group_bytes;

		for (size_t lane = 0; lane < FM_LANES; lane++) {
			size_t row = group * FM_LANES + lane;
			const uint8_t *from = (const uint8_t *)tensor + row * n_blocks * file_bytes;

			for (size_t i = 0; i < n_blocks && row < matrix->rows; i++)
				pack_block(matrix->format, to + i * packed_bytes,
					   from + i * file_bytes, lane);
		}
	}
}

void fm_vector_unpack(enum fm_format format, const void *tensor, size_t n, float *out)
{
	const uint8_t *from = tensor;

	if (format == FM_FORMAT_F32) {
		memcpy(out, from, n * sizeof(*out));
		return;
	}
	for (size_t i = 0; i < n; i++) {
		uint16_t bits;

		memcpy(&bits, from + 2 * i, sizeof(bits));
		out[i] = format == FM_FORMAT_F16 ? fm_half_to_float(bits)
						 : fm_bits_float((uint32_t)bits << 16);
	}
}
