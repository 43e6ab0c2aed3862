/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of each weight format: its sizes, and how rows as GGUF stores them are packed into
 * groups of
 * 16. Called when a model is opened. Invariant: packing moves bits and loses none.
 */
#include <string.h>

#include <kernels.h>

static const struct {
	const char *name;
	size_t file_block_bytes;   /* of 32 columns of one row */
	size_t packed_block_bytes; /* of 32 columns of 16 rows */
	bool is_quantised;
} formats[FM_FORMAT_COUNT] = {
	[FM_FORMAT_F32] = {"F32", 128, 2048, false},
	[FM_FORMAT_F16] = {"F16", 64, 1024, false},
	[FM_FORMAT_Q8_0] = {"Q8_0", 34, sizeof(struct fm_block_q8_0), true},
	[FM_FORMAT_Q4_0] = {"Q4_0", 18, sizeof(struct fm_block_q4_0), true},
	[FM_FORMAT_Q4_1] = {"Q4_1", 20, sizeof(struct fm_block_q4_1), true},
};

size_t fm_format_group_bytes(enum fm_format format, uint32_t columns)
{
	return (size_t)columns / FM_BLOCK_COLUMNS * formats[format].packed_block_bytes;
}

size_t fm_format_row_bytes(enum fm_format format, uint32_t columns)
{
	return (size_t)columns / FM_BLOCK_COLUMNS * formats[format].file_block_bytes;
}

const char *fm_format_name(enum fm_format format)
{
	return formats[format].name;
}

bool fm_format_is_quantised(enum fm_format format)
{
	return formats[format].is_quantised;
}

static void pack_q8_0(void *to, const uint8_t *from, size_t row)
{
	struct fm_block_q8_0 *block = to;

	memcpy(&block->d[row], from, 2);
	for (int i = 0; i < FM_BLOCK_COLUMNS; i++)
		block->q[i / 4][row][i % 4] = from[2 + i] ^ 0x80; /* adds 128 */
}

static void pack_q4_0(void *to, const uint8_t *from, size_t row)
{
	struct fm_block_q4_0 *block = to;

	memcpy(&block->d[row], from, 2);
	for (int quad = 0; quad < 4; quad++)
		memcpy(block->q[quad][row], from + 2 + quad * 4, 4);
}

static void pack_q4_1(void *to, const uint8_t *from, size_t row)
{
	struct fm_block_q4_1 *block = to;

	memcpy(&block->d[row], from, 2);
	memcpy(&block->m[row], from + 2, 2);
	for (int quad = 0; quad < 4; quad++)
		memcpy(block->q[quad][row], from + 4 + quad * 4, 4);
}

/* Elements of @size bytes, [column][row]. */
static void pack_elements(uint8_t *to, const uint8_t *from, size_t row, size_t size)
{
	for (size_t i = 0; i < FM_BLOCK_COLUMNS; i++)
		memcpy(to + (i * FM_LANES + row) * size, from + i * size, size);
}

static void pack_block(enum fm_format format, void *to, const uint8_t *from, size_t row)
{
	switch (format) {
	case FM_FORMAT_F32:
		pack_elements(to, from, row, 4);
		break;
	case FM_FORMAT_F16:
		pack_elements(to, from, row, 2);
		break;
	case FM_FORMAT_Q8_0:
		pack_q8_0(to, from, row);
		break;
	case FM_FORMAT_Q4_0:
		pack_q4_0(to, from, row);
		break;
	case FM_FORMAT_Q4_1:
		pack_q4_1(to, from, row);
		break;
	case FM_FORMAT_COUNT:
		break;
	}
}

void fm_matrix_pack(const struct fm_matrix *matrix, const void *tensor, size_t first_group,
		    size_t end_group)
{
	const size_t file_bytes = formats[matrix->format].file_block_bytes;
	const size_t packed_bytes = formats[matrix->format].packed_block_bytes;
	const size_t n_blocks = matrix->columns / FM_BLOCK_COLUMNS;

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
