/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every instruction-set path against the portable one, byte for byte, on random data and edge
 * shapes, every weight format also with scales that are infinite, NaN, denormal and zero. A NaN
 * equals any NaN: which of two operands' payloads survives is the compiler's choice. A path that
 * this machine lacks is skipped and said so.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>
#include <cpu/formats.h>
#include <kernels.h>

static const char *const isas[] = {"avx2", "avx512", "amx"};
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

/* The same for floats, of which NaNs are equal. */
static void assert_floats(float *a, float *b, size_t n, const char *what)
{
	for (size_t i = 0; i < n; i++) {
		a[i] = isnan(a[i]) ? NAN : a[i];
		b[i] = isnan(b[i]) ? NAN : b[i];
	}
	assert_bytes(a, b, n * sizeof(*a), what);
}

/* A scale of sensible size, or (now and then) what a damaged or odd file may hold. */
static uint16_t random_half(bool is_extreme, bool is_negative)
{
	static const uint16_t extremes[] = {
		0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff,
		0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0x3c00, 0x1234, 0x8fff,
	};

	if (is_extreme && random_u32() % 4 == 0)
		return extremes[random_u32() % 16];
	return (uint16_t)((is_negative ? 0xa000 : 0x2000) + random_u32() % 0x800);
}

static uint32_t random_float_bits(bool is_extreme)
{
	static const uint32_t extremes[] = {0,		1,	    0x80000000, 0x807fffff,
					    0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00001};
	float value = random_float();
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return is_extreme && random_u32() % 64 == 0 ? extremes[random_u32() % 8] : bits;
}

/* The elements of a row in one of the formats of floats. */
static void random_elements(enum fm_format format, uint8_t *out, size_t n, bool is_extreme)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t bits = random_float_bits(is_extreme);
		uint16_t half = random_half(is_extreme, i % 2);

		if (format == FM_FORMAT_F32)
			memcpy(out + 4 * i, &bits, 4);
		else if (format == FM_FORMAT_F16)
			memcpy(out + 2 * i, &half, 2);
		else
			memcpy(out + 2 * i, (uint8_t *)&bits + 2, 2);
	}
}

/* A tensor as a file stores it: random bytes, and scales. */
static void *random_tensor(enum fm_format format, uint32_t rows, uint32_t columns, bool is_extreme)
{
	const struct fm_format_traits *traits = &fm_formats[format];
	size_t n = (size_t)rows * columns / traits->file_columns;
	uint8_t *out = malloc(n * traits->file_bytes);

	for (size_t i = 0; i < n; i++, out += traits->file_bytes) {
		uint16_t d = random_half(is_extreme, false), m = random_half(is_extreme, true);

		for (size_t j = 0; j < traits->file_bytes; j++)
			out[j] = (uint8_t)random_u32();
		if (!fm_format_is_quantised(format)) {
			random_elements(format, out, traits->file_columns, is_extreme);
			continue;
		}
		memcpy(out + (format == FM_FORMAT_Q6_K ? 208 : 0), &d, 2);
		if (traits->has_minimum)
			memcpy(out + 2, &m, 2);
	}
	return out - n * traits->file_bytes;
}

static struct fm_matrix pack_matrix(enum fm_format format, uint32_t rows, uint32_t columns,
				    const void *tensor, bool is_level)
{
	struct fm_matrix matrix = {
		.format = format,
		.is_level = is_level,
		.rows = rows,
		.columns = columns,
		.group_bytes = is_level ? fm_format_level_group_bytes(format, columns)
					: fm_format_group_bytes(format, columns),
	};
	size_t bytes = fm_matrix_groups(&matrix) * matrix.group_bytes;

	matrix.data = aligned_alloc(64, (bytes + 63) / 64 * 64);
	memset(matrix.data, 0, bytes);
	fm_matrix_pack(&matrix, tensor, 0, fm_matrix_groups(&matrix));
	return matrix;
}

static struct fm_matrix random_matrix(enum fm_format format, uint32_t rows, uint32_t columns,
				      bool is_extreme)
{
	void *tensor = random_tensor(format, rows, columns, is_extreme);
	struct fm_matrix matrix = pack_matrix(format, rows, columns, tensor, false);

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
	assert_floats(results[0], results[1], n * stride, fm_format_name(matrix->format));
	free(tiles);
	free(x);
	free(results[0]);
	free(results[1]);
	free(rows);
}

/* Every format in several shapes; @_i / 2: the path, @_i % 2: extreme scales. */
START_TEST(products_are_the_same)
{
	static const uint32_t rows[] = {1, 16, 50, 96}, blocks[] = {1, 3, 50, 2};
	static const size_t tokens[] = {1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 27, 33};
	const struct fm_kernels *kernels = path(_i / 2);

	for (int i = 0; kernels && i < FM_FORMAT_COUNT * 4; i++) {
		enum fm_format format = (enum fm_format)(i / 4);
		uint32_t n = blocks[i % 4];
		/* More steps of 32 columns than the AMX path takes at once; 7 blocks of 256 columns
		 * have enough. */
		uint32_t columns = fm_formats[format].file_columns * (n > 3 && i / 4 > 7 ? 7 : n);
		struct fm_matrix matrix = random_matrix(format, rows[i % 4], columns, _i % 2);

		for (size_t j = 0; j < sizeof(tokens) / sizeof(tokens[0]); j++)
			for (int mode = fm_format_is_quantised(format) ? 0 : 2; mode < 3; mode++)
				compare_products(kernels, &matrix, tokens[j], mode);
		free(matrix.data);
	}
}
END_TEST

/* Level products of @n tokens by both paths. */
static void compare_level_products(const struct fm_kernels *kernels, const struct fm_matrix *matrix,
				   size_t n)
{
	const size_t n_tiles = fm_level_tiles(matrix->columns), stride = matrix->rows + 1;
	const size_t bytes = (n + 15) / 16 * n_tiles * sizeof(struct fm_level_tile);
	const struct fm_kernels *paths[2] = {portable, kernels};
	struct fm_level_tile *tiles[2];
	float *x = random_floats(n * matrix->columns);
	float *results[2] = {calloc(n, stride * 4), calloc(n, stride * 4)};
	float **rows = calloc(n, sizeof(*rows)), *scales[2] = {calloc(n, 4), calloc(n, 4)};

	memset(x, 0, matrix->columns * 4);		      /* one token of zeros */
	for (size_t i = 0; n > 1 && i < matrix->columns; i++) /* and one of low bytes of -128 */
		x[matrix->columns + i] = i ? 128.0f : 32512.0f;
	for (int i = 0; i < 2; i++) {
		tiles[i] = aligned_alloc(64, bytes);
		memset(tiles[i], 0, bytes);
		for (size_t token = 0; token < n; token++) {
			rows[token] = results[i] + token * stride;
			paths[i]->quantise_level(tiles[i] + token / 16 * n_tiles, token % 16,
						 x + token * matrix->columns, matrix->columns,
						 scales[i] + token);
		}
		paths[i]->product_level(matrix, 0, fm_matrix_groups(matrix), tiles[i], scales[i], n,
					rows);
	}
	assert_bytes(tiles[0], tiles[1], bytes, "quantise_level");
	assert_bytes(scales[0], scales[1], n * 4, "quantise_level");
	assert_floats(results[0], results[1], n * stride, fm_format_name(matrix->format));
	for (int i = 0; i < 2; i++) {
		free(tiles[i]);
		free(results[i]);
		free(scales[i]);
	}
	free(x);
	free(rows);
}

/* @_i / 2: the path, @_i % 2: extreme scales. */
START_TEST(level_products_are_the_same)
{
	/* 100 blocks: more than the AMX path takes at once. */
	static const uint32_t rows[] = {1, 16, 50, 96}, blocks[] = {1, 3, 100, 2};
	static const size_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 25, 33};
	const struct fm_kernels *kernels = path(_i / 2);

	for (int i = 0; kernels && i < FM_FORMAT_COUNT * 4; i++) {
		enum fm_format format = (enum fm_format)(i / 4);
		uint32_t each = fm_formats[format].file_columns;
		uint32_t columns =
			each * (blocks[i % 4] * 32 / each > 1 ? blocks[i % 4] * 32 / each : 1);
		struct fm_matrix matrix;
		void *tensor;

		if (!fm_format_may_be_level(format))
			continue;
		tensor = random_tensor(format, rows[i % 4], columns, _i % 2);
		matrix = pack_matrix(format, rows[i % 4], columns, tensor, true);
		for (size_t j = 0; j < sizeof(tokens) / sizeof(tokens[0]); j++)
			compare_level_products(kernels, &matrix, tokens[j]);
		if (i % 4 == 0) /* more tokens than sums are kept for */
			compare_level_products(kernels, &matrix, 300);
		free(matrix.data);
		free(tensor);
	}
}
END_TEST

/* Against float64 on the file's own numbers: 15 bits of a row's largest weight and activation. */
START_TEST(level_products_are_right)
{
	enum { ROWS = 40, COLUMNS = 1536, TILES = COLUMNS / FM_LEVEL_COLUMNS };
	static struct fm_level_tile tiles[TILES];
	float y[ROWS], *out[1] = {y}, scale, w[COLUMNS];

	path(0);
	for (int i = 0; i < FM_FORMAT_COUNT; i++) {
		enum fm_format format = (enum fm_format)i;
		struct fm_matrix level, plain;
		float *x = random_floats(COLUMNS);
		void *tensor;

		if (!fm_format_may_be_level(format)) {
			free(x);
			continue;
		}
		tensor = random_tensor(format, ROWS, COLUMNS, false);
		level = pack_matrix(format, ROWS, COLUMNS, tensor, true);
		plain = pack_matrix(format, ROWS, COLUMNS, tensor, false);
		portable->quantise_level(tiles, 0, x, COLUMNS, &scale);
		portable->product_level(&level, 0, 3, tiles, &scale, 1, out);
		for (uint32_t row = 0; row < ROWS; row++) {
			double sum = 0.0, largest_w = 0.0, largest_x = 0.0, size_w = 0.0,
			       size_x = 0.0;

			portable->row(&plain, row, w);
			for (int j = 0; j < COLUMNS; j++) {
				sum += (double)w[j] * x[j];
				size_w += fabs((double)w[j]);
				size_x += fabs((double)x[j]);
				largest_w = fmax(largest_w, fabs((double)w[j]));
				largest_x = fmax(largest_x, fabs((double)x[j]));
			}
			/* Half a step of each weight's d (times up to 31) and m, and of each x. */
			ck_assert_double_lt(fabs(sum - (double)y[row]),
					    largest_w * size_x * 16 / 16384 / 8 +
						    largest_x * size_w / 65024 + 1e-5 * fabs(sum));
		}
		free(level.data);
		free(plain.data);
		free(tensor);
		free(x);
	}
}
END_TEST

/* Rows are those of any path. */
START_TEST(rows_are_the_same)
{
	const struct fm_kernels *kernels = path(_i / 2);
	float a[512], b[512];

	for (int format = 0; kernels && format < FM_FORMAT_COUNT; format++) {
		struct fm_matrix matrix = random_matrix((enum fm_format)format, 37, 512, _i % 2);

		for (uint32_t row = 0; row < 37; row++) {
			portable->row(&matrix, row, a);
			kernels->row(&matrix, row, b);
			assert_floats(a, b, 512, fm_format_name((enum fm_format)format));
		}
		free(matrix.data);
	}
}
END_TEST

START_TEST(products_are_right)
{
	struct fm_matrix matrix;
	float *x, y[40], *rows[1] = {y}, w[512];
	struct fm_tile tiles[16];

	path(0);
	for (int format = 0; format < FM_FORMAT_COUNT; format++) {
		matrix = random_matrix((enum fm_format)format, 40, 512, false);
		x = random_floats(512);
		for (int mode = fm_format_is_quantised((enum fm_format)format) ? 0 : 1; mode < 2;
		     mode++) {
			portable->quantise(tiles, 0, x, 512, true);
			if (mode == 0)
				portable->product_integer(&matrix, 0, 3, tiles, true, 1, rows);
			else
				portable->product_float(&matrix, 0, 3, x, 1, rows);
			for (uint32_t row = 0; row < 40; row++) {
				double sum = 0.0, size = 0.0;

				portable->row(&matrix, row, w);
				for (int i = 0; i < 512; i++) {
					sum += (double)w[i] * x[i];
					size += fabs((double)w[i] * x[i]);
				}
				/* 16-bit activations: an error of 2^-16 of a block's largest. */
				ck_assert_double_lt(fabs(sum - y[row]),
						    (mode ? 1e-6 : 1e-2) * (0.01 + size));
			}
		}
		free(x);
		free(matrix.data);
	}
}
END_TEST

/* Packing keeps a matrix as large as the file has it, the last group's padding aside. */
START_TEST(packed_is_as_large_as_the_file)
{
	for (int i = 0; i < FM_FORMAT_COUNT; i++) {
		enum fm_format format = (enum fm_format)i;
		size_t in_file = 16 * fm_format_row_bytes(format, 1024);
		size_t packed = fm_format_group_bytes(format, 1024);

		ck_assert_uint_ge(packed, in_file);
		ck_assert_uint_le(packed, in_file + in_file * 3 / 100);
		/* A level one: at most half a bit a weight, and a scale a row. */
		if (fm_format_may_be_level(format))
			ck_assert_uint_le(fm_format_level_group_bytes(format, 1024),
					  in_file + 16 * (1024 / 16 + 4));
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
		portable->rope_halves(a, weight, n / 32, 32, 32);
		kernels->rope_halves(b, weight, n / 32, 32, 32);
		assert_bytes(a, b, n * 4, "rope_halves");
		portable->scale(a, 1.7f, n);
		kernels->scale(b, 1.7f, n);
		assert_bytes(a, b, n * 4, "scale");
		portable->gelu_multiply(a, weight, n);
		kernels->gelu_multiply(b, weight, n);
		assert_bytes(a, b, n * 4, "gelu_multiply");
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

/* Against the formulas in double. */
START_TEST(gates_and_turns_are_right)
{
	float x[64], up[64], table[32], turned[64];

	path(0);
	for (int i = 0; i < 64; i++) {
		x[i] = turned[i] = (float)(i - 32) / 3.0f;
		up[i] = 1.0f + (float)i / 64.0f;
	}
	portable->gelu_multiply(x, up, 64);
	for (int i = 0; i < 64; i++) {
		double v = (i - 32) / 3.0;
		double u = sqrt(2.0 / acos(-1.0)) * (v + 0.044715 * v * v * v);
		double right = 0.5 * v * (1.0 + tanh(u)) * (double)up[i];

		ck_assert_msg(fabs((double)x[i] - right) <= 2e-6 * fabs(right) + 1e-7,
			      "gelu(%g) * %g: %g is not %g", v, (double)up[i], (double)x[i], right);
	}
	for (int i = 0; i < 16; i++) {
		table[2 * i] = (float)cos(i);
		table[2 * i + 1] = (float)sin(i);
	}
	memcpy(x, turned, sizeof(x));
	portable->rope_halves(turned, table, 1, 64, 32);
	for (int i = 0; i < 16; i++) {
		double low = x[i] * cos(i) - x[i + 16] * sin(i);
		double high = x[i + 16] * cos(i) + x[i] * sin(i);

		ck_assert(fabs(turned[i] - low) < 1e-5 && fabs(turned[i + 16] - high) < 1e-5);
	}
	ck_assert(!memcmp(turned + 32, x + 32, 32 * sizeof(float)));
}
END_TEST

/* The segments of one token, the last one first. */
static void attend_in_parts(const struct fm_kernels *kernels, const struct fm_attention *attention,
			    const float *q, float *out)
{
	size_t n = fm_attention_segments(attention->position);
	size_t floats = attention->n_heads * fm_attention_part_floats(attention->head_dim);
	float *parts = aligned_alloc(64, (n * floats * sizeof(float) + 63) / 64 * 64);

	for (size_t i = n; i-- > fm_attention_first_segment(attention, attention->position);)
		kernels->attention_part(attention, i, q, parts + i * floats);
	kernels->attention_merge(attention, parts, out);
	free(parts);
}

static void compare_attention(const struct fm_kernels *kernels, uint32_t n_heads, uint32_t dim,
			      uint32_t position, uint32_t n_tokens, bool is_half, uint32_t window)
{
	size_t stride = n_heads * dim + 5;
	size_t n_blocks = position / 16 + 1, half = 16 * dim * (is_half ? 2 : 4);
	void **blocks = calloc(n_blocks, sizeof(*blocks));
	float *q = random_floats(n_tokens * stride), *row = random_floats(dim);
	float *a = calloc(n_tokens * stride, 4), *b = calloc(n_tokens * stride, 4);
	struct fm_attention attention = {
		.n_heads = n_heads,
		.head_dim = dim,
		.position = position,
		.n_tokens = n_tokens,
		.window = window,
		.stride = stride,
		.is_half = is_half,
		.scale = 0.3f,
		.blocks = blocks,
		.value_offset = half,
	};

	for (size_t i = 0; i < n_blocks; i++) {
		blocks[i] = malloc(2 * half);
		memset(blocks[i], 0xff, 2 * half); /* NaN where nothing was written */
	}
	for (uint32_t i = fm_attention_start(&attention, position); i < position + n_tokens; i++) {
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
	for (uint32_t i = 0; i < n_tokens * stride; i++)
		ck_assert(isfinite(a[i]));
	assert_bytes(a, b, n_tokens * stride * 4, "attention");
	/* And those of each token alone. */
	for (uint32_t i = 0; i < n_tokens; i++) {
		attention.position = position + i;
		attention.n_tokens = 1;
		kernels->attention(&attention, q + i * stride, b + i * stride);
	}
	assert_bytes(a, b, n_tokens * stride * 4, "attention, token by token");
	memset(b, 0, n_tokens * stride * 4);
	for (uint32_t i = 0; i < n_tokens; i++) {
		attention.position = position + i;
		attend_in_parts(kernels, &attention, q + i * stride, b + i * stride);
	}
	assert_bytes(a, b, n_tokens * stride * 4, "attention, part by part");
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
	static const uint32_t dims[] = {32, 64, 128, 256};
	static const uint32_t positions[] = {0, 1, 15, 16, 32, 100, 255, 256, 530};
	const struct fm_kernels *kernels = path(_i);

	for (uint32_t n_heads = 1; kernels && n_heads <= 7; n_heads++)
		for (int dim = 0; dim < 4; dim++)
			for (size_t i = 0; i < sizeof(positions) / sizeof(positions[0]); i++)
				for (int is_half = 0; is_half < 2; is_half++)
					compare_attention(kernels, n_heads, dims[dim], positions[i],
							  1, is_half, 0);
}
END_TEST

START_TEST(attention_in_a_window_is_the_same)
{
	static const uint32_t windows[] = {1, 5, 16, 17, 48, 100};
	const struct fm_kernels *kernels = path(_i);

	for (size_t i = 0; kernels && i < sizeof(windows) / sizeof(windows[0]); i++)
		for (uint32_t position = 0; position < 80; position += 11)
			for (uint32_t dim = 64; dim <= 256; dim *= 4)
				compare_attention(kernels, 2, dim, position,
						  1 + (position + i) % (16 - position % 16), i & 1,
						  windows[i]);
}
END_TEST

/* A window that begins with a block sees what a sequence that began there would. */
START_TEST(a_window_leaves_out_what_is_before_it)
{
	enum { DIM = 32, BLOCKS = 4, WINDOW = 2 * FM_ATTENTION_TOKENS };
	float kv[BLOCKS][2][FM_ATTENTION_TOKENS][DIM], q[DIM], a[DIM], b[DIM], all[DIM];
	void *blocks[BLOCKS];
	struct fm_attention attention = {
		.n_heads = 1,
		.head_dim = DIM,
		.position = BLOCKS * FM_ATTENTION_TOKENS - 1,
		.n_tokens = 1,
		.window = WINDOW,
		.stride = DIM,
		.scale = 0.3f,
		.blocks = blocks,
		.value_offset = sizeof(kv[0][0]),
	};

	path(0);
	for (size_t i = 0; i < sizeof(kv) / sizeof(float); i++)
		((float *)kv)[i] = random_float();
	for (int i = 0; i < BLOCKS; i++)
		blocks[i] = kv[i];
	for (int i = 0; i < DIM; i++)
		q[i] = random_float();
	portable->attention(&attention, q, a);
	attention.window = 0;
	portable->attention(&attention, q, all);
	attention.blocks = blocks + BLOCKS - 2;
	attention.position = WINDOW - 1;
	portable->attention(&attention, q, b);
	assert_bytes(a, b, sizeof(a), "attention in a window");
	ck_assert(memcmp(a, all, sizeof(a)) != 0);
}
END_TEST

/* The tokens of a block together: every length from every place in it. */
START_TEST(attention_of_runs_is_the_same)
{
	const struct fm_kernels *kernels = path(_i);

	for (uint32_t n_heads = 1; kernels && n_heads <= 9; n_heads += n_heads == 4 ? 5 : 1)
		for (uint32_t position = 0; position < 16; position++)
			for (uint32_t n = 1; position + n <= 16; n += n == 1 ? 1 : 3)
				for (int i = 0; i < 4; i++)
					compare_attention(kernels, n_heads, 64,
							  position + (i & 1) * 48, n, i & 2, 0);
	for (uint32_t dim = 32; kernels && dim <= 256; dim *= 2) {
		compare_attention(kernels, 70, dim, 32, 16, true, 0);
		compare_attention(kernels, 9, dim, 240, 16, false, 0);
		compare_attention(kernels, 3, dim, 515, 7, true, 0);
		compare_attention(kernels, 3, dim, 515, 7, true, 261);
		compare_attention(kernels, 2, dim, 530, 1, true, 300);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("kernels");
	TCase *tests = tcase_create("kernels");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_set_timeout(tests, 300);
	tcase_add_loop_test(tests, products_are_the_same, 0, 6);
	tcase_add_loop_test(tests, level_products_are_the_same, 0, 6);
	tcase_add_test(tests, level_products_are_right);
	tcase_add_loop_test(tests, rows_are_the_same, 0, 6);
	tcase_add_test(tests, packed_is_as_large_as_the_file);
	tcase_add_test(tests, products_are_right);
	tcase_add_loop_test(tests, vectors_are_the_same, 0, 3);
	tcase_add_test(tests, gates_and_turns_are_right);
	/* Slow, and the AMX path's attention is that of AVX-512. */
	tcase_add_loop_test(tests, attention_is_the_same, 0, 2);
	tcase_add_loop_test(tests, attention_of_runs_is_the_same, 0, 2);
	tcase_add_loop_test(tests, attention_in_a_window_is_the_same, 0, 2);
	tcase_add_test(tests, a_window_leaves_out_what_is_before_it);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
