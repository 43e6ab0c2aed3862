/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights in float32 equal, to the bit, what the `gguf` package makes of the same bytes: packed and
 * read back by every path, each row in several places of a group of 16. The blocks and their values
 * are in tests/data/gguf-dequantised.bin.gz, or in the file that $FABRICMGR_GGUF_GOLDEN names. A
 * NaN equals any NaN: NumPy's own differ by machine.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>
#include <kernels.h>

enum { COPIES = 5 }; /* of the rows, one after the other: 9 rows stand in every lane */

static const char *const isas[] = {"portable", "avx2", "avx512", "amx"};

/* One format's part of the file. */
struct golden {
	uint32_t type, rows, columns, row_bytes;
	uint8_t *data;
	float *floats;
};

static FILE *open_golden(void)
{
	const char *path = getenv("FABRICMGR_GGUF_GOLDEN");
	char command[512];
	FILE *pipe;

	snprintf(command, sizeof(command), "gzip -dc '%s'",
		 path ? path : "tests/data/gguf-dequantised.bin.gz");
	pipe = popen(command, "r");
	ck_assert_ptr_nonnull(pipe);
	return pipe;
}

static bool read_golden(FILE *pipe, struct golden *out)
{
	size_t n;

	if (fread(&out->type, sizeof(uint32_t), 4, pipe) != 4)
		return false;
	ck_assert_uint_lt(out->rows, 1000);
	ck_assert_uint_lt(out->columns, 10000);
	n = (size_t)out->rows * out->columns;
	out->data = malloc((size_t)out->rows * out->row_bytes);
	out->floats = malloc(n * sizeof(float));
	ck_assert_uint_eq(fread(out->data, out->row_bytes, out->rows, pipe), out->rows);
	ck_assert_uint_eq(fread(out->floats, sizeof(float), n, pipe), n);
	return true;
}

static void free_golden(struct golden *golden)
{
	free(golden->data);
	free(golden->floats);
}

static void assert_row(const float *ours, const float *theirs, uint32_t n, const char *what,
		       uint32_t row)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t a, b;

		memcpy(&a, &ours[i], sizeof(a));
		memcpy(&b, &theirs[i], sizeof(b));
		ck_assert_msg(a == b || (isnan(ours[i]) && isnan(theirs[i])),
			      "%s, row %u, column %u: %08x is not %08x", what, row, i, a, b);
	}
}

static struct fm_matrix pack(const struct golden *golden, enum fm_format format)
{
	struct fm_matrix matrix = {
		.format = format,
		.rows = golden->rows * COPIES,
		.columns = golden->columns,
		.group_bytes = fm_format_group_bytes(format, golden->columns),
	};
	size_t bytes = fm_matrix_groups(&matrix) * matrix.group_bytes;
	size_t tensor_bytes = (size_t)golden->rows * golden->row_bytes;
	uint8_t *tensor = malloc(tensor_bytes * COPIES);

	for (size_t i = 0; i < COPIES; i++)
		memcpy(tensor + i * tensor_bytes, golden->data, tensor_bytes);
	matrix.data = aligned_alloc(64, (bytes + 63) / 64 * 64);
	memset(matrix.data, 0, bytes);
	fm_matrix_pack(&matrix, tensor, 0, fm_matrix_groups(&matrix));
	free(tensor);
	return matrix;
}

START_TEST(rows_equal_the_reference)
{
	const struct fm_kernels *kernels;
	FILE *pipe = open_golden();
	struct golden golden;
	int n_formats = 0;

	if (fm_kernels_select(isas[_i], &kernels)) {
		fprintf(stderr, "SKIP: dequantise: %s\n", fm_error_detail());
		pclose(pipe);
		return;
	}
	for (; read_golden(pipe, &golden); n_formats++) {
		enum fm_format format;
		struct fm_matrix matrix;
		float *row = malloc(golden.columns * sizeof(*row));

		ck_assert(fm_format_find(golden.type, &format));
		ck_assert_uint_eq(fm_format_row_bytes(format, golden.columns), golden.row_bytes);
		matrix = pack(&golden, format);
		for (uint32_t i = 0; i < matrix.rows; i++) {
			kernels->row(&matrix, i, row);
			assert_row(row, golden.floats + i % golden.rows * golden.columns,
				   golden.columns, fm_format_name(format), i);
		}
		free(matrix.data);
		free(row);
		free_golden(&golden);
	}
	ck_assert_int_eq(pclose(pipe), 0);
	ck_assert_int_eq(n_formats, FM_FORMAT_COUNT);
}
END_TEST

/* A product with a row of the identity is a column: product_float sees the same weights. */
START_TEST(columns_equal_the_reference)
{
	const struct fm_kernels *kernels;
	FILE *pipe = open_golden();
	struct golden golden;

	if (fm_kernels_select(isas[_i], &kernels)) {
		fprintf(stderr, "SKIP: dequantise: %s\n", fm_error_detail());
		pclose(pipe);
		return;
	}
	while (read_golden(pipe, &golden)) {
		enum fm_format format;
		struct fm_matrix matrix;
		float *x = calloc(golden.columns, sizeof(*x)), *y;

		ck_assert(fm_format_find(golden.type, &format));
		matrix = pack(&golden, format);
		y = malloc(matrix.rows * sizeof(*y));
		for (uint32_t column = 0; column < golden.columns; column++) {
			x[column] = 1.0f;
			kernels->product_float(&matrix, 0, fm_matrix_groups(&matrix), x, 1, &y);
			x[column] = 0.0f;
			for (uint32_t i = 0; i < matrix.rows; i++) {
				const float *row =
					golden.floats + i % golden.rows * golden.columns;
				bool is_finite = true;

				for (uint32_t j = 0; j < golden.columns; j++)
					is_finite = is_finite && isfinite(row[j]);
				/* Elsewhere zeros times infinities make NaN; a sum has no -0. */
				if (is_finite)
					ck_assert_msg(y[i] == row[column],
						      "%s, row %u, column %u: %g is not %g",
						      fm_format_name(format), i, column,
						      (double)y[i], (double)row[column]);
			}
		}
		free(matrix.data);
		free(x);
		free(y);
		free_golden(&golden);
	}
	ck_assert_int_eq(pclose(pipe), 0);
}
END_TEST

/* Vectors of floats, as norms are stored. */
START_TEST(vectors_equal_the_reference)
{
	FILE *pipe = open_golden();
	struct golden golden;
	int n_formats = 0;

	while (read_golden(pipe, &golden)) {
		uint32_t n = golden.rows * golden.columns;
		float *out = malloc(n * sizeof(*out));
		enum fm_format format;

		ck_assert(fm_format_find(golden.type, &format));
		if (!fm_format_is_quantised(format)) {
			fm_vector_unpack(format, golden.data, n, out);
			assert_row(out, golden.floats, n, fm_format_name(format), 0);
			n_formats++;
		}
		free(out);
		free_golden(&golden);
	}
	ck_assert_int_eq(pclose(pipe), 0);
	ck_assert_int_eq(n_formats, 3);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dequantise");
	TCase *tests = tcase_create("dequantise");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_add_loop_test(tests, rows_equal_the_reference, 0, 4);
	tcase_add_loop_test(tests, columns_equal_the_reference, 0, 4);
	tcase_add_test(tests, vectors_equal_the_reference);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
