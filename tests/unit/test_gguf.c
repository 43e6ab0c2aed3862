// SPDX-License-Identifier: Apache-2.0
/*
 * The GGUF reader: what it reads, what it refuses and what it then says, and that no truncated or
 * changed file makes it read outside of it. Each file stands in memory of exactly its size, so that
 * the sanitizers see a byte too many.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fabricmgr.h>

#include "gguf_builder.h"
#include "scratch.h"

struct shape { /* one tensor and one key of a file; the tests change one thing each */
	uint32_t version;
	uint64_t n_tensors, n_keys;
	uint32_t n_dims;
	uint64_t dims[4];
	uint32_t type;
	uint64_t offset;
	uint32_t alignment; /* written as the key */
	size_t data_bytes;
};

static const struct shape good = {3, 1, 1, 2, {64, 3, 0, 0}, GGML_Q4_1, 0, 32, 120};

static void build(struct gguf_builder *out, const struct shape *shape)
{
	build_header(out, shape->version, shape->n_tensors, shape->n_keys);
	build_key_u32(out, "general.alignment", shape->alignment);
	build_tensor(out, "blk.3.ffn_up.weight", shape->n_dims, shape->dims, shape->type,
		     shape->offset);
	build_align(out, 32);
	for (size_t i = 0; i < shape->data_bytes; i++)
		build_bytes(out, &(uint8_t){i}, 1);
}

static int open_copy(const uint8_t *data, size_t n, struct gguf **file, void **copy)
{
	*copy = malloc(n ? n : 1);
	ck_assert_ptr_nonnull(*copy);
	memcpy(*copy, data, n);
	return gguf_open_memory(*copy, n, "model.gguf", file);
}

/* Everything that an accessor can reach; the sum keeps the compiler from leaving reads out. */
static uint64_t read_everything(const struct gguf *file)
{
	uint64_t sum = gguf_file_size(file);

	for (size_t i = 0; i < gguf_n_keys(file); i++) {
		enum gguf_type type, element;
		struct gguf_string name = gguf_key_at(file, i, &type), text;
		char *key = strndup(name.data, name.len);
		uint32_t number;
		int64_t wide;
		float real;
		bool flag;
		size_t n;

		sum += gguf_get_u32(file, key, &number) + gguf_get_bool(file, key, &flag) +
		       gguf_get_f32(file, key, &real);
		if (gguf_get_string(file, key, &text) && text.len)
			sum += (uint8_t)text.data[0] + (uint8_t)text.data[text.len - 1];
		if (gguf_get_array(file, key, &element, &n)) {
			for (size_t j = 0; j <= n && j < 1000; j++) {
				sum += gguf_array_i64(file, key, j, &wide);
				sum += gguf_array_f32(file, key, j, &real);
				if (gguf_array_string(file, key, j, &text) && text.len)
					sum += (uint8_t)text.data[text.len - 1];
			}
		}
		free(key);
	}
	for (size_t i = 0; i < gguf_n_tensors(file); i++) {
		const struct gguf_tensor *tensor = gguf_tensor_at(file, i);

		sum += ((const uint8_t *)tensor->data)[0];
		sum += ((const uint8_t *)tensor->data)[tensor->n_bytes - 1];
	}
	return sum;
}

static void refuse(const struct shape *shape, int err, const char *words)
{
	struct gguf_builder built = {0};
	struct gguf *file;
	void *copy;

	build(&built, shape);
	ck_assert_int_eq(open_copy(built.data, built.n, &file, &copy), err);
	ck_assert_ptr_null(file);
	ck_assert_msg(strstr(fm_error_detail(), "model.gguf: ") == fm_error_detail(), "%s",
		      fm_error_detail());
	ck_assert_msg(strstr(fm_error_detail(), words) != NULL, "\"%s\" lacks \"%s\"",
		      fm_error_detail(), words);
	free(copy);
	build_free(&built);
}

START_TEST(a_good_file_is_read)
{
	for (uint32_t version = 2; version <= 3; version++) {
		struct shape shape = good;
		struct gguf_builder built = {0};
		const struct gguf_tensor *tensor;
		struct gguf *file;
		void *copy;

		shape.version = version;
		build(&built, &shape);
		ck_assert_int_eq(open_copy(built.data, built.n, &file, &copy), 0);
		ck_assert_uint_eq(gguf_n_tensors(file), 1);
		ck_assert_uint_eq(gguf_file_size(file), built.n);
		ck_assert_str_eq(gguf_path(file), "model.gguf");
		tensor = gguf_tensor(file, "blk.3.ffn_up.weight");
		ck_assert_ptr_nonnull(tensor);
		ck_assert_ptr_eq(tensor, gguf_tensor_at(file, 0));
		ck_assert_ptr_null(gguf_tensor(file, "blk.3.ffn_up.weigh"));
		ck_assert_ptr_null(gguf_tensor_at(file, 1));
		ck_assert_uint_eq(tensor->n_bytes, 2 * 3 * 20);
		ck_assert_uint_eq(tensor->dims[0], 64);
		ck_assert_uint_eq(tensor->dims[2], 1);
		ck_assert_uint_eq(tensor->file_offset % 32, 0);
		ck_assert_uint_eq(((const uint8_t *)tensor->data)[119], 119);
		ck_assert_str_eq(gguf_type_name(tensor->type), "Q4_1");
		gguf_close(file);
		free(copy);
		build_free(&built);
	}
}
END_TEST

START_TEST(a_bad_header_is_refused)
{
	struct shape shape = good;

	shape.version = 1;
	refuse(&shape, FM_ERR_UNSUPPORTED, "version 1");
	shape.version = __builtin_bswap32(3);
	refuse(&shape, FM_ERR_UNSUPPORTED, "big-endian");
	shape = good;
	shape.n_tensors = UINT64_MAX;
	refuse(&shape, FM_ERR_CORRUPT, "18446744073709551615 tensors");
	shape = good;
	shape.n_keys = 1u << 20;
	refuse(&shape, FM_ERR_CORRUPT, "1048576 keys");
	for (uint32_t alignment = 0; alignment < 100; alignment++) {
		if (alignment == 8 || alignment == 16 || alignment == 32 || alignment == 64)
			continue;
		shape = good;
		shape.alignment = alignment;
		refuse(&shape, FM_ERR_CORRUPT, "general.alignment");
	}
}
END_TEST

START_TEST(tensors_that_overlap_are_refused)
{
	struct gguf_builder built = {0};
	struct gguf *file;
	void *copy;

	build_header(&built, 3, 3, 0);
	for (int i = 0; i < 3; i++)
		build_tensor(&built, (const char *[]){"a", "b", "c"}[i], 1, (uint64_t[]){256},
			     GGML_F32, 0);
	build_align(&built, 32);
	for (int i = 0; i < 256; i++)
		build_u32(&built, 0);
	ck_assert_int_eq(open_copy(built.data, built.n, &file, &copy), FM_ERR_CORRUPT);
	ck_assert_msg(strstr(fm_error_detail(), "take 3072 bytes") != NULL, "%s",
		      fm_error_detail());
	free(copy);
	build_free(&built);
}
END_TEST

START_TEST(a_bad_tensor_is_refused)
{
	struct shape shape = good;

	shape.n_dims = 0;
	refuse(&shape, FM_ERR_CORRUPT, "0 dimensions");
	shape.n_dims = 5;
	refuse(&shape, FM_ERR_CORRUPT, "5 dimensions");
	shape = good;
	shape.dims[1] = 0;
	refuse(&shape, FM_ERR_CORRUPT, "dimension 1 of 0");
	shape = good;
	shape.dims[0] = shape.dims[1] = 1ull << 32;
	refuse(&shape, FM_ERR_CORRUPT, "too large");
	shape.dims[1] = 1ull << 31;
	refuse(&shape, FM_ERR_CORRUPT, "too large");
	shape.dims[1] = (1ull << 31) - 1;
	refuse(&shape, FM_ERR_CORRUPT, "ends at");
	shape.type = GGML_F32; /* elements fit into 63 bits, bytes do not fit into 64 */
	refuse(&shape, FM_ERR_CORRUPT, "larger than any file");
	shape = good;
	shape.dims[0] = 48;
	refuse(&shape, FM_ERR_CORRUPT, "not a multiple of Q4_1's block of 32");
	shape = good;
	shape.offset = 16;
	refuse(&shape, FM_ERR_CORRUPT, "not a multiple of the alignment 32");
	shape = good;
	shape.offset = UINT64_MAX - 31;
	refuse(&shape, FM_ERR_CORRUPT, "beyond any file");
	shape = good;
	shape.type = 10;
	refuse(&shape, FM_ERR_UNSUPPORTED, "blk.3.ffn_up.weight has type Q2_K (id 10)");
	shape.type = 4;
	refuse(&shape, FM_ERR_UNSUPPORTED, "unknown (id 4)");
	shape.type = UINT32_MAX;
	refuse(&shape, FM_ERR_UNSUPPORTED, "unknown (id 4294967295)");
}
END_TEST

START_TEST(a_truncated_file_says_what_is_missing)
{
	struct shape shape = good;
	struct gguf_builder built = {0};
	char words[160];

	build(&built, &shape);
	snprintf(words, sizeof(words),
		 "tensor blk.3.ffn_up.weight needs bytes %zu..%zu but the file ends at %zu: "
		 "truncated; download it again",
		 built.n - 120, built.n, built.n - 1);
	shape.data_bytes = 119;
	refuse(&shape, FM_ERR_CORRUPT, words);
	build_free(&built);
}
END_TEST

/* A file of @n_keys keys that the caller appends. */
static void refuse_keys(struct gguf_builder *built, int err, const char *words)
{
	struct gguf *file;
	void *copy;

	ck_assert_int_eq(open_copy(built->data, built->n, &file, &copy), err);
	ck_assert_msg(strstr(fm_error_detail(), words) != NULL, "\"%s\" lacks \"%s\"",
		      fm_error_detail(), words);
	free(copy);
	build_free(built);
}

START_TEST(bad_keys_are_refused)
{
	struct gguf_builder built = {0};

	build_header(&built, 3, 0, 2);
	build_key_u32(&built, "a", 1);
	build_key_string(&built, "a", "x");
	refuse_keys(&built, FM_ERR_CORRUPT, "key a stands twice");

	/* What a terminal would obey is not passed on. */
	build_header(&built, 3, 0, 2);
	build_key_u32(&built, "\x1b[2Ja\n\x7f", 1);
	build_key_u32(&built, "\x1b[2Ja\n\x7f", 1);
	refuse_keys(&built, FM_ERR_CORRUPT, "key ?[2Ja?? stands twice");

	build_header(&built, 3, 0, 1);
	build_key_bool(&built, "flag", 2);
	refuse_keys(&built, FM_ERR_CORRUPT, "boolean of value 2");

	build_header(&built, 3, 0, 1);
	build_key(&built, "flags", GGUF_ARRAY);
	build_u32(&built, GGUF_BOOL);
	build_u64(&built, 3);
	build_bytes(&built, "\0\1\377", 3);
	refuse_keys(&built, FM_ERR_CORRUPT, "boolean of value 255 (element 2)");

	build_header(&built, 3, 0, 1);
	build_key(&built, "nested", GGUF_ARRAY);
	build_u32(&built, GGUF_ARRAY);
	build_u64(&built, 1);
	build_bytes(&built, (char[64]){0}, 64);
	refuse_keys(&built, FM_ERR_UNSUPPORTED, "nested is an array of arrays");

	build_header(&built, 3, 0, 1);
	build_key(&built, "k", 13);
	build_u32(&built, 0);
	refuse_keys(&built, FM_ERR_CORRUPT, "unknown value type 13");

	build_header(&built, 3, 0, 1);
	build_key(&built, "k", GGUF_ARRAY);
	build_u32(&built, 99);
	build_u64(&built, 1);
	refuse_keys(&built, FM_ERR_CORRUPT, "unknown element type 99");

	build_header(&built, 3, 0, 1);
	build_key(&built, "k", GGUF_ARRAY);
	build_u32(&built, GGUF_U64);
	build_u64(&built, 1ull << 61); /* times eight: 0 */
	refuse_keys(&built, FM_ERR_CORRUPT, "claims 2305843009213693952 elements");

	build_header(&built, 3, 0, 1);
	build_key(&built, "k", GGUF_ARRAY);
	build_u32(&built, GGUF_STRING);
	build_u64(&built, 1ull << 61);
	refuse_keys(&built, FM_ERR_CORRUPT, "an array of strings");

	build_header(&built, 3, 0, 1);
	build_u64(&built, UINT64_MAX);
	build_bytes(&built, "kkkkkkkk", 8);
	refuse_keys(&built, FM_ERR_CORRUPT, "a key at byte 32 needs 18446744073709551615 bytes");

	build_header(&built, 3, 0, 1);
	build_u64(&built, 0);
	build_bytes(&built, "kkkkkkkk", 8);
	refuse_keys(&built, FM_ERR_CORRUPT, "is 0 bytes long");

	build_header(&built, 3, 2, 0);
	for (int i = 0; i < 2; i++)
		build_tensor(&built, "same", 1, (uint64_t[]){8}, GGML_F32, 0);
	refuse_keys(&built, FM_ERR_CORRUPT, "tensor same stands twice");

	/* A name cannot send escape sequences to a terminal. */
	build_header(&built, 3, 0, 1);
	build_key_bool(&built, "\033[2Jx", 2);
	refuse_keys(&built, FM_ERR_CORRUPT, "key ?[2Jx holds");
}
END_TEST

static void key_with(struct gguf_builder *out, const char *key, uint32_t type, const void *value,
		     size_t n)
{
	build_key(out, key, type);
	build_bytes(out, value, n);
}

START_TEST(numbers_convert_when_they_fit)
{
	struct gguf_builder built = {0};
	struct gguf *file;
	uint32_t number = 7;
	float real;
	bool flag;
	void *copy;

	build_header(&built, 3, 0, 12);
	key_with(&built, "u8", GGUF_U8, &(uint8_t){200}, 1);
	key_with(&built, "i8", GGUF_I8, &(int8_t){-1}, 1);
	key_with(&built, "u16", GGUF_U16, &(uint16_t){60000}, 2);
	key_with(&built, "i16", GGUF_I16, &(int16_t){30000}, 2);
	key_with(&built, "i32", GGUF_I32, &(int32_t){5}, 4);
	key_with(&built, "u64", GGUF_U64, &(uint64_t){UINT32_MAX}, 8);
	key_with(&built, "big", GGUF_U64, &(uint64_t){1ull << 32}, 8);
	key_with(&built, "huge", GGUF_U64, &(uint64_t){1ull << 63 | 3}, 8);
	key_with(&built, "i64", GGUF_I64, &(int64_t){-5}, 8);
	key_with(&built, "f32", GGUF_F32, &(float){1.5f}, 4);
	key_with(&built, "f64", GGUF_F64, &(double){1e-5}, 8);
	key_with(&built, "f64big", GGUF_F64, &(double){1e300}, 8);
	ck_assert_int_eq(open_copy(built.data, built.n, &file, &copy), 0);
	ck_assert(gguf_get_u32(file, "u8", &number) && number == 200);
	ck_assert(gguf_get_u32(file, "u16", &number) && number == 60000);
	ck_assert(gguf_get_u32(file, "i16", &number) && number == 30000);
	ck_assert(gguf_get_u32(file, "i32", &number) && number == 5);
	ck_assert(gguf_get_u32(file, "u64", &number) && number == UINT32_MAX);
	ck_assert(!gguf_get_u32(file, "big", &number));
	ck_assert(!gguf_get_u32(file, "huge", &number));
	ck_assert(!gguf_get_u32(file, "i8", &number));
	ck_assert(!gguf_get_u32(file, "i64", &number));
	ck_assert(!gguf_get_u32(file, "f32", &number));
	ck_assert(!gguf_get_u32(file, "absent", &number));
	ck_assert_uint_eq(number, UINT32_MAX);
	ck_assert(gguf_get_f32(file, "f32", &real) && real == 1.5f);
	ck_assert(gguf_get_f32(file, "f64", &real) && real == 1e-5f);
	ck_assert(!gguf_get_f32(file, "f64big", &real));
	ck_assert(!gguf_get_f32(file, "u8", &real));
	ck_assert(!gguf_get_bool(file, "u8", &flag));
	gguf_close(file);
	free(copy);
	build_free(&built);
}
END_TEST

START_TEST(arrays_are_indexed)
{
	static const char *const texts[] = {"one", "", "three"};
	struct gguf_builder built = {0};
	struct gguf_string text;
	enum gguf_type type;
	struct gguf *file;
	int64_t number;
	void *copy;
	size_t n;

	build_header(&built, 3, 0, 3);
	build_key_strings(&built, "texts", texts, 3);
	build_key(&built, "numbers", GGUF_ARRAY);
	build_u32(&built, GGUF_I32);
	build_u64(&built, 2);
	build_u32(&built, (uint32_t)-3);
	build_u32(&built, 9);
	build_key(&built, "none", GGUF_ARRAY);
	build_u32(&built, GGUF_STRING);
	build_u64(&built, 0);
	ck_assert_int_eq(open_copy(built.data, built.n, &file, &copy), 0);
	ck_assert(gguf_get_array(file, "texts", &type, &n) && type == GGUF_STRING && n == 3);
	ck_assert(gguf_array_string(file, "texts", 2, &text) && text.len == 5 &&
		  memcmp(text.data, "three", 5) == 0);
	ck_assert(gguf_array_string(file, "texts", 1, &text) && text.len == 0);
	ck_assert(!gguf_array_string(file, "texts", 3, &text));
	ck_assert(!gguf_array_string(file, "numbers", 0, &text));
	ck_assert(!gguf_array_i64(file, "texts", 0, &number));
	ck_assert(gguf_array_i64(file, "numbers", 0, &number) && number == -3);
	ck_assert(!gguf_array_i64(file, "numbers", 2, &number));
	ck_assert(gguf_get_array(file, "none", &type, &n) && n == 0);
	gguf_close(file);
	free(copy);
	build_free(&built);
}
END_TEST

START_TEST(no_prefix_of_a_file_opens_or_crashes)
{
	struct gguf_builder built = {0};
	struct gguf *file;
	void *copy;

	build(&built, &good);
	for (size_t n = 0; n < built.n; n++) {
		ck_assert_int_lt(open_copy(built.data, n, &file, &copy), 0);
		free(copy);
	}
	build_free(&built);
}
END_TEST

START_TEST(no_changed_byte_crashes)
{
	static const uint8_t values[] = {0, 0xff, 1, 2, 8, 9, 0x7f, 0x80};
	struct gguf_builder built[2] = {{0}, {0}};

	build(&built[0], &good);
	build_tokenizer_file(&built[1], "gpt-2", "x");
	for (int which = 0; which < 2; which++) {
		for (size_t i = 0; i < built[which].n; i++) {
			uint8_t before = built[which].data[i];

			/* The larger file with the first two only. */
			for (size_t v = 0; v < (which ? 2 : sizeof(values)); v++) {
				struct gguf *file;
				void *copy;

				built[which].data[i] = values[v];
				if (open_copy(built[which].data, built[which].n, &file, &copy) == 0)
					read_everything(file);
				gguf_close(file);
				free(copy);
			}
			built[which].data[i] = before;
		}
		build_free(&built[which]);
	}
}
END_TEST

START_TEST(files_are_mapped_and_wrong_paths_named)
{
	struct gguf_builder built = {0};
	char path[SCRATCH_MAX];
	int fd = scratch_file(path);
	struct gguf *file;

	ck_assert_int_eq(gguf_open(path, &file), FM_ERR_CORRUPT);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), "is empty"));
	build(&built, &good);
	ck_assert_int_eq(write(fd, built.data, built.n), (ssize_t)built.n);
	close(fd);
	ck_assert_int_eq(gguf_open(path, &file), 0);
	ck_assert_str_eq(gguf_path(file), path);
	read_everything(file);
	gguf_close(file);
	unlink(path);
	ck_assert_int_eq(gguf_open(path, &file), FM_ERR_NOT_FOUND);
	ck_assert_ptr_nonnull(strstr(fm_error_detail(), path));
	ck_assert_int_eq(gguf_open("/tmp", &file), FM_ERR_INVALID);
	build_free(&built);
}
END_TEST

START_TEST(a_real_model_opens)
{
	const char *path = getenv("FABRICMGR_TEST_MODEL");
	struct gguf_string arch;
	struct gguf *file;

	if (!path || !*path) {
		printf("SKIP: gguf/a_real_model_opens: FABRICMGR_TEST_MODEL is not set\n");
		return;
	}
	ck_assert_msg(gguf_open(path, &file) == 0, "%s", fm_error_detail());
	ck_assert(gguf_get_string(file, "general.architecture", &arch));
	ck_assert_ptr_nonnull(gguf_tensor(file, "token_embd.weight"));
	read_everything(file);
	gguf_close(file);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("gguf");
	TCase *tests = tcase_create("gguf");
	SRunner *runner = srunner_create(suite);
	int failed;

	setvbuf(stdout, NULL, _IOLBF, 0);
	tcase_add_test(tests, a_good_file_is_read);
	tcase_add_test(tests, a_bad_header_is_refused);
	tcase_add_test(tests, a_bad_tensor_is_refused);
	tcase_add_test(tests, tensors_that_overlap_are_refused);
	tcase_add_test(tests, a_truncated_file_says_what_is_missing);
	tcase_add_test(tests, bad_keys_are_refused);
	tcase_add_test(tests, numbers_convert_when_they_fit);
	tcase_add_test(tests, arrays_are_indexed);
	tcase_add_test(tests, no_prefix_of_a_file_opens_or_crashes);
	tcase_add_test(tests, no_changed_byte_crashes);
	tcase_add_test(tests, files_are_mapped_and_wrong_paths_named);
	tcase_add_test(tests, a_real_model_opens);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
