/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every instruction-set path against the portable one, byte for byte, on random data and edge
 * shapes. A path that this machine lacks is skipped and said so.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>
#include <kernels.h>

static const char *const isas[] = {"avx2", "avx512"};
static const struct fm_kernels *portable;
static uint64_t random_state;

static uint32_t random_u32(void)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(random_state >> 33);
}

/* Mostly of size 1, some tiny, some large, some zero. */
static float random_float(void)
{
	float value = (float)random_u32() / 1073741824.0f - 1.0f;
	uint32_t kind = random_u32() % 64;

	return kind == 0 ? 0.0f : kind == 1 ? value * 300.0f : kind == 2 ? value * 1e-6f : value;
}

static float *random_floats(size_t n)
{
	float *out = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);

	for (size_t i = 0; i < n; i++)
		out[i] = random_float();
	return out;
}

static const struct fm_kernels *path(int i)
{
	const struct fm_kernels *kernels = NULL;

	random_state = 1;
	ck_assert_int_eq(fm_kernels_select("portable", &portable), 0);
	if (fm_kernels_select(isas[i], &kernels))
		fprintf(stderr, "SKIP: kernels: %s\n", fm_error_detail());
	return kernels;
}

static void assert_bytes(const void *a, const void *b, size_t n, const char *what)
{
	ck_assert_msg(memcmp(a, b, n) == 0, "%s differs from the portable path", what);
}

/* A tensor as a file stores it: random bytes with scales of sensible size. */
static void *random_tensor(enum fm_format format, uint32_t rows, uint32_t columns)
{
	size_t block = fm_format_row_bytes(format, 32), n = rows * columns / 32;
	uint8_t *out = malloc(n * block);

	for (size_t i = 0; i < n; i++, out += block) {
		uint16_t scales[2] = {(uint16_t)(0x2000 + random_u32() % 0x800),
				      (uint16_t)(0xa000 + random_u32() % 0x800)};

		for (size_t j = 0; j < block; j++)
			out[j] = (uint8_t)random_u32();
		if (format == FM_FORMAT_F32)
			for (int j = 0; j < 32; j++)
				memcpy(out + 4 * j, &(float){random_float()}, 4);
		else if (format == FM_FORMAT_F16)
			for (int j = 0; j < 32; j++)
				out[2 * j + 1] = out[2 * j + 1] % 8 | 0x30 | (j % 2 ? 0x80 : 0);
		else
			memcpy(out, scales, format == FM_FORMAT_Q4_1 ? 4 : 2);
	}
	return out - n * block;
}

static struct fm_matrix random_matrix(enum fm_format format, uint32_t rows, uint32_t columns)
{
	struct fm_matrix matrix = {
		.format = format,
		.rows = rows,
		.columns = columns,
		.group_bytes = fm_format_group_bytes(format, columns),
	};
	size_t bytes = fm_matrix_groups(&matrix) * matrix.group_bytes;
	void *tensor = random_tensor(format, rows, columns);

	matrix.data = aligned_alloc(64, (bytes + 63) / 64 * 64);
	memset(matrix.data, 0, bytes);
	fm_matrix_pack(&matrix, tensor, 0, fm_matrix_groups(&matrix));
	free(tensor);
	return matrix;
}

/* Products of @n tokens by both paths; one float more than the rows, to see that it stays. */
static void compare_products(const struct fm_kernels *kernels, const struct fm_matrix *matrix,
			     size_t n, int mode)
{
	const size_t n_blocks = matrix->columns / 32, stride = matrix->rows + 1;
	size_t n_tiles = (n + 15) / 16 * n_blocks;
	struct fm_tile *tiles = aligned_alloc(64, n_tiles * sizeof(*tiles));
	float *x = random_floats(n * matrix->columns);
	float *results[2] = {calloc(n, stride * 4), calloc(n, stride * 4)};
	const struct fm_kernels *paths[2] = {portable, kernels};
	float **rows = calloc(n, sizeof(*rows));

	memset(tiles, 0, n_tiles * sizeof(*tiles));
	for (size_t i = 0; i < n; i++)
		portable->quantise(tiles + i / 16 * n_blocks, i % 16, x + i * matrix->columns,
				   matrix->columns, mode == 1);
	for (int i = 0; i < 2; i++) {
		for (size_t token = 0; token < n; token++)
			rows[token] = results[i] + token * stride;
		if (mode == 2)
			paths[i]->product_float(matrix, 0, fm_matrix_groups(matrix), x, n, rows);
		else
			paths[i]->product_integer(matrix, 0, fm_matrix_groups(matrix), tiles,
						  mode == 1, n, rows);
	}
	assert_bytes(results[0], results[1], n * stride * 4, fm_format_name(matrix->format));
	free(tiles);
	free(x);
	free(results[0]);
	free(results[1]);
	free(rows);
}

START_TEST(products_are_the_same)
{
	static const uint32_t rows[] = {1, 16, 50, 96}, columns[] = {32, 96, 224, 64};
	static const size_t tokens[] = {1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 21, 33};
	const struct fm_kernels *kernels = path(_i);

	for (int format = 0; kernels && format < FM_FORMAT_COUNT; format++) {
		for (int shape = 0; shape < 4; shape++) {
			struct fm_matrix matrix =
				random_matrix((enum fm_format)format, rows[shape], columns[shape]);
			int first = fm_format_is_quantised((enum fm_format)format) ? 0 : 2;

			for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++)
				for (int mode = first; mode < 3; mode++)
					compare_products(kernels, &matrix, tokens[i], mode);
			free(matrix.data);
		}
	}
}
END_TEST

START_TEST(products_are_right)
{
	struct fm_matrix matrix;
	float *x, y[40], *rows[1] = {y}, w[96];

	path(0);
	for (int format = 0; format < FM_FORMAT_COUNT; format++) {
		matrix = random_matrix((enum fm_format)format, 40, 96);
		x = random_floats(96);
		portable->product_float(&matrix, 0, 3, x, 1, rows);
		for (uint32_t row = 0; row < 40; row++) {
			double sum = 0.0;

			portable->row(&matrix, row, w);
			for (int i = 0; i < 96; i++)
				sum += (double)w[i] * x[i];
			ck_assert_double_lt(fabs(sum - y[row]), 1e-3 * (1.0 + fabs(sum)));
		}
		free(x);
		free(matrix.data);
	}
}
END_TEST

START_TEST(vectors_are_the_same)
{
	const struct fm_kernels *kernels = path(_i);

	for (size_t n = 32; kernels && n <= 1536; n = n * 3 / 64 * 32 + 32) {
		float *x = random_floats(n), *weight = random_floats(n), *a = malloc(n * 4),
		      *b = malloc(n * 4);
		struct fm_tile *tiles[2];

		portable->rms_norm(a, x, weight, n, 1e-5f);
		kernels->rms_norm(b, x, weight, n, 1e-5f);
		assert_bytes(a, b, n * 4, "rms_norm");
		portable->rope(a, weight, n / 32, 32, 32);
		kernels->rope(b, weight, n / 32, 32, 32);
		assert_bytes(a, b, n * 4, "rope");
		x[1] = 200.0f;
		x[2] = -200.0f;
		memcpy(a, x, n * 4);
		memcpy(b, x, n * 4);
		portable->silu_multiply(a, weight, n);
		kernels->silu_multiply(b, weight, n);
		assert_bytes(a, b, n * 4, "silu_multiply");
		portable->add(a, x, n);
		kernels->add(b, x, n);
		assert_bytes(a, b, n * 4, "add");
		x[3] = 65519.9f; /* the largest that rounds below infinity */
		x[4] = 1e30f;
		x[5] = 3e-8f;
		x[6] = -5.97e-8f;
		portable->store_kv(a, x, n, true);
		kernels->store_kv(b, x, n, true);
		assert_bytes(a, b, n * 2, "store_kv");
		memset(x, 0, 32 * 4); /* a block of zeros has scale 0 */
		for (int i = 0; i < 2; i++) {
			tiles[i] = aligned_alloc(64, n / 32 * sizeof(struct fm_tile));
			memset(tiles[i], 0, n / 32 * sizeof(struct fm_tile));
			(i ? kernels : portable)->quantise(tiles[i], 3, x, n, false);
			(i ? kernels : portable)->quantise(tiles[i], 15, x, n, true);
		}
		assert_bytes(tiles[0], tiles[1], n / 32 * sizeof(struct fm_tile), "quantise");
		free(tiles[0]);
		free(tiles[1]);
		free(x);
		free(weight);
		free(a);
		free(b);
	}
}
END_TEST

static void compare_attention(const struct fm_kernels *kernels, uint32_t n_heads, uint32_t dim,
			      uint32_t position, bool is_half)
{
	size_t n_blocks = position / 16 + 1, half = 16 * dim * (is_half ? 2 : 4);
	void **blocks = calloc(n_blocks, sizeof(*blocks));
	float *q = random_floats(n_heads * dim), *row = random_floats(dim);
	float *a = malloc(n_heads * dim * 4), *b = malloc(n_heads * dim * 4);
	struct fm_attention attention = {
		.n_heads = n_heads,
		.head_dim = dim,
		.position = position,
		.is_half = is_half,
		.scale = 0.3f,
		.blocks = blocks,
		.value_offset = half,
	};

	for (size_t i = 0; i < n_blocks; i++) {
		blocks[i] = malloc(2 * half);
		memset(blocks[i], 0xff, 2 * half); /* NaN where nothing was written */
	}
	for (uint32_t i = 0; i <= position; i++) {
		for (size_t which = 0; which < 2; which++) {
			for (uint32_t j = 0; j < dim; j++)
				row[j] = random_float();
			portable->store_kv((uint8_t *)blocks[i / 16] + which * half +
						   i % 16 * dim * (is_half ? 2 : 4),
					   row, dim, is_half);
		}
	}
	portable->attention(&attention, q, a);
	kernels->attention(&attention, q, b);
	for (uint32_t i = 0; i < n_heads * dim; i++)
		ck_assert(isfinite(a[i]));
	assert_bytes(a, b, n_heads * dim * 4, "attention");
	for (size_t i = 0; i < n_blocks; i++)
		free(blocks[i]);
	free(blocks);
	free(q);
	free(row);
	free(a);
	free(b);
}

START_TEST(attention_is_the_same)
{
	static const uint32_t dims[] = {32, 64, 128};
	static const uint32_t positions[] = {0, 1, 14, 15, 16, 31, 32, 100, 257};
	const struct fm_kernels *kernels = path(_i);

	for (uint32_t n_heads = 1; kernels && n_heads <= 7; n_heads++)
		for (int dim = 0; dim < 3; dim++)
			for (size_t i = 0; i < sizeof(positions) / sizeof(positions[0]); i++)
				for (int is_half = 0; is_half < 2; is_half++)
					compare_attention(kernels, n_heads, dims[dim], positions[i],
							  is_half);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("kernels");
	TCase *tests = tcase_create("kernels");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_set_timeout(tests, 300);
	tcase_add_loop_test(tests, products_are_the_same, 0, 2);
	tcase_add_test(tests, products_are_right);
	tcase_add_loop_test(tests, vectors_are_the_same, 0, 2);
	tcase_add_loop_test(tests, attention_is_the_same, 0, 2);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
