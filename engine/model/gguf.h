/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GGUF file (v2, v3), memory-mapped and checked before anything else may use it. Pure reader: no
 * model knowledge. Invariant: after gguf_open() every offset, length and count has been verified to
 * lie in the file, so no accessor can read outside the mapping. The format: the GGUF page of ggml.
 */
#ifndef FM_ENGINE_GGUF_H
#define FM_ENGINE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf;

enum gguf_type { /* metadata value types, as in the file */
	GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING,
	GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64,
};

enum ggml_type { /* tensor types of the file format; gguf_open() refuses ids it does not know */
	GGML_F32 = 0, GGML_F16 = 1, GGML_Q4_0 = 2, GGML_Q4_1 = 3, GGML_Q5_0 = 6, GGML_Q5_1 = 7,
	GGML_Q8_0 = 8, GGML_Q4_K = 12, GGML_Q5_K = 13, GGML_Q6_K = 14, GGML_IQ4_NL = 20,
	GGML_BF16 = 30,
};

struct gguf_string { /* not terminated; points into the mapping */
	const char *data;
	size_t len;
};

struct gguf_tensor {
	struct gguf_string name;
	enum ggml_type type;
	uint32_t n_dims;
	uint64_t dims[4];	/* dims[0] is contiguous; unused ones are 1 */
	const void *data;	/* into the mapping */
	uint64_t file_offset;
	uint64_t n_bytes;
};

/* Returns 0 or a negative fm_err; fm_error_detail() names the file, the cause and the offset. */
int gguf_open(const char *path, struct gguf **out);
/* The same over memory that stays valid and unchanged until gguf_close() (tests, fuzzing). */
int gguf_open_memory(const void *data, size_t size, const char *label, struct gguf **out);
void gguf_close(struct gguf *file);

const char *gguf_path(const struct gguf *file);
uint64_t gguf_file_size(const struct gguf *file);
size_t gguf_n_tensors(const struct gguf *file);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *file, size_t i);
const struct gguf_tensor *gguf_tensor(const struct gguf *file, const char *name); /* NULL: absent */
const char *gguf_type_name(enum ggml_type type);

/* Metadata. Getters return false when the key is absent or has another type; integers of any width
 * and sign convert when the value fits. */
size_t gguf_n_keys(const struct gguf *file);
struct gguf_string gguf_key_at(const struct gguf *file, size_t i, enum gguf_type *type);
bool gguf_has(const struct gguf *file, const char *key);
bool gguf_get_u32(const struct gguf *file, const char *key, uint32_t *out);
bool gguf_get_f32(const struct gguf *file, const char *key, float *out);
bool gguf_get_bool(const struct gguf *file, const char *key, bool *out);
bool gguf_get_string(const struct gguf *file, const char *key, struct gguf_string *out);
/* Arrays: count, then element i (a sequential walk is O(1) a step; strings are indexed at open). */
bool gguf_get_array(const struct gguf *file, const char *key, enum gguf_type *type, size_t *n);
bool gguf_array_string(const struct gguf *file, const char *key, size_t i, struct gguf_string *out);
bool gguf_array_i64(const struct gguf *file, const char *key, size_t i, int64_t *out);
bool gguf_array_f32(const struct gguf *file, const char *key, size_t i, float *out);

#endif
