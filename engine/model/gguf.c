// SPDX-License-Identifier: Apache-2.0
/*
 * Reads and verifies GGUF files. Anything in the engine may call it; it knows nothing of models.
 * Invariant: every position that an accessor follows was compared with the file's size at open, and
 * what is allocated at open is bounded by the file's size plus fixed limits (never by a count that
 * merely stands in the file).
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fabricmgr.h>

#include "model/gguf.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF numbers are read in place");

/* Far above any model known (a 671-billion MoE in one file: 1,147 tensors, 60 keys), and small
 * enough that the tables below take at most 11 MiB whatever the header claims. */
#define GGUF_KEYS_MAX	       65536
#define GGUF_TENSORS_MAX       65536
#define GGUF_NAME_BYTES_MAX    65535 /* of a key: the specification's limit */
#define GGUF_ALIGNMENT_DEFAULT 32
#define GGUF_ALIGNMENT_MAX     (1u << 30)

struct gguf_key {
	struct gguf_string name;
	enum gguf_type type;
	enum gguf_type element; /* of an array */
	uint64_t n;		/* elements of an array */
	const uint8_t *value;	/* a string's text; an array's first element */
	uint64_t *strings;	/* where each string of an array stands in the file (its length) */
	uint64_t string_len;
};

/* Open addressing over names; a slot holds index + 1. */
struct name_table {
	uint32_t *slots;
	size_t mask;
};

struct gguf {
	char *path;
	const uint8_t *base;
	size_t size;
	bool is_mapped;
	uint64_t data_start; /* where tensor offsets count from */
	struct gguf_key *keys;
	size_t n_keys;
	struct gguf_tensor *tensors;
	size_t n_tensors;
	struct name_table key_table;
	struct name_table tensor_table;
};

struct cursor {
	const uint8_t *base;
	uint64_t pos, size;
	const char *path;
};

struct printable {
	char text[80];
};

static const struct {
	const char *name;
	uint16_t block, bytes; /* elements and bytes of a block; 0: known by name only */
} tensor_types[] = {
	[GGML_F32] = {"F32", 1, 4},
	[GGML_F16] = {"F16", 1, 2},
	[GGML_Q4_0] = {"Q4_0", 32, 18},
	[GGML_Q4_1] = {"Q4_1", 32, 20},
	[GGML_Q5_0] = {"Q5_0", 32, 22},
	[GGML_Q5_1] = {"Q5_1", 32, 24},
	[GGML_Q8_0] = {"Q8_0", 32, 34},
	[9] = {"Q8_1", 0, 0},
	[10] = {"Q2_K", 0, 0},
	[11] = {"Q3_K", 0, 0},
	[GGML_Q4_K] = {"Q4_K", 256, 144},
	[GGML_Q5_K] = {"Q5_K", 256, 176},
	[GGML_Q6_K] = {"Q6_K", 256, 210},
	[15] = {"Q8_K", 0, 0},
	[16] = {"IQ2_XXS", 0, 0},
	[17] = {"IQ2_XS", 0, 0},
	[18] = {"IQ3_XXS", 0, 0},
	[19] = {"IQ1_S", 0, 0},
	[GGML_IQ4_NL] = {"IQ4_NL", 32, 18},
	[21] = {"IQ3_S", 0, 0},
	[22] = {"IQ2_S", 0, 0},
	[23] = {"IQ4_XS", 0, 0},
	[24] = {"I8", 0, 0},
	[25] = {"I16", 0, 0},
	[26] = {"I32", 0, 0},
	[27] = {"I64", 0, 0},
	[28] = {"F64", 0, 0},
	[29] = {"IQ1_M", 0, 0},
	[GGML_BF16] = {"BF16", 1, 2},
	[34] = {"TQ1_0", 0, 0},
	[35] = {"TQ2_0", 0, 0},
	[39] = {"MXFP4", 0, 0},
	[40] = {"NVFP4", 0, 0},
};

#define N_TENSOR_TYPES (sizeof(tensor_types) / sizeof(tensor_types[0]))

static const uint8_t value_bytes[] = {
	[GGUF_U8] = 1,	[GGUF_I8] = 1,	   [GGUF_U16] = 2,   [GGUF_I16] = 2, [GGUF_U32] = 4,
	[GGUF_I32] = 4, [GGUF_F32] = 4,	   [GGUF_BOOL] = 1,  [GGUF_U64] = 8, [GGUF_I64] = 8,
	[GGUF_F64] = 8, [GGUF_STRING] = 0, [GGUF_ARRAY] = 0,
};

#define N_VALUE_TYPES (sizeof(value_bytes) / sizeof(value_bytes[0]))

const char *gguf_type_name(enum ggml_type type)
{
	if ((size_t)type >= N_TENSOR_TYPES || !tensor_types[type].name)
		return "unknown";
	return tensor_types[type].name;
}

/* Names come from the file: only plain ASCII goes into a message, the rest as '?'. */
static struct printable printable(struct gguf_string name)
{
	struct printable out;
	size_t n = name.len < sizeof(out.text) - 1 ? name.len : sizeof(out.text) - 1;

	for (size_t i = 0; i < n; i++)
		out.text[i] = name.data[i] > ' ' && name.data[i] <= '~' ? name.data[i] : '?';
	out.text[n] = '\0';
	if (n < name.len)
		memcpy(out.text + n - 3, "...", 3);
	return out;
}

/* ---- the name tables ---------------------------------------------------------------------- */

static uint64_t hash_name(const char *data, size_t len)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (size_t i = 0; i < len; i++)
		hash = (hash ^ (uint8_t)data[i]) * 0x100000001b3u;
	hash ^= hash >> 32;
	hash *= 0x9e3779b97f4a7c15u;
	return hash ^ hash >> 29;
}

static bool name_equal(struct gguf_string name, const char *data, size_t len)
{
	return name.len == len && memcmp(name.data, data, len) == 0;
}

static int name_table_create(struct name_table *table, size_t n)
{
	size_t size = 16;

	while (size < 2 * n)
		size *= 2;
	table->slots = calloc(size, sizeof(*table->slots));
	if (!table->slots)
		return FM_ERR_NO_MEMORY;
	table->mask = size - 1;
	return 0;
}

static struct gguf_string key_name(const struct gguf *file, size_t i)
{
	return file->keys[i].name;
}

static struct gguf_string tensor_name(const struct gguf *file, size_t i)
{
	return file->tensors[i].name;
}

/* The slot that holds the name, or the empty one where it belongs. */
static uint32_t *name_table_slot(const struct gguf *file, const struct name_table *table,
				 struct gguf_string (*name_of)(const struct gguf *, size_t),
				 const char *data, size_t len)
{
	size_t at = hash_name(data, len) & table->mask;

	while (table->slots[at] && !name_equal(name_of(file, table->slots[at] - 1), data, len))
		at = (at + 1) & table->mask;
	return &table->slots[at];
}

static const struct gguf_key *find_key(const struct gguf *file, const char *key)
{
	uint32_t slot = *name_table_slot(file, &file->key_table, key_name, key, strlen(key));

	return slot ? &file->keys[slot - 1] : NULL;
}

/* ---- reading with checks ------------------------------------------------------------------ */

static int truncated(const struct cursor *in, const char *what, uint64_t need)
{
	return fm_fail(FM_ERR_CORRUPT,
		       "%s: %s at byte %" PRIu64 " needs %" PRIu64
		       " bytes but the file ends at %" PRIu64 ": truncated or damaged; "
		       "download it again",
		       in->path, what, in->pos, need, in->size);
}

static int read_bytes(struct cursor *in, const char *what, void *out, uint64_t n)
{
	if (n > in->size - in->pos)
		return truncated(in, what, n);
	memcpy(out, in->base + in->pos, n);
	in->pos += n;
	return 0;
}

static int read_string(struct cursor *in, const char *what, struct gguf_string *out)
{
	uint64_t len = 0;
	int err = read_bytes(in, what, &len, sizeof(len));

	if (err)
		return err;
	if (len > in->size - in->pos)
		return truncated(in, what, len);
	out->data = (const char *)in->base + in->pos;
	out->len = len;
	in->pos += len;
	return 0;
}

static int read_name(struct cursor *in, const char *what, struct gguf_string *out)
{
	uint64_t at = in->pos;
	int err = read_string(in, what, out);

	if (err)
		return err;
	if (out->len == 0 || out->len > GGUF_NAME_BYTES_MAX)
		return fm_fail(FM_ERR_CORRUPT,
			       "%s: %s at byte %" PRIu64 " is %zu bytes long, allowed are 1 to %d: "
			       "damaged; download it again",
			       in->path, what, at, out->len, GGUF_NAME_BYTES_MAX);
	return 0;
}

static int check_bools(const struct cursor *in, const struct gguf_key *key, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		if (key->value[i] > 1)
			return fm_fail(FM_ERR_CORRUPT,
				       "%s: key %s holds a boolean of value %u (element %" PRIu64
				       "): damaged; download it again",
				       in->path, printable(key->name).text, key->value[i], i);
	}
	return 0;
}

static int read_array_strings(struct cursor *in, struct gguf_key *key)
{
	struct gguf_string text;

	/* Each string takes at least its length's 8 bytes, so this is at most the file's size. */
	if (key->n > (in->size - in->pos) / sizeof(uint64_t))
		return truncated(in, "an array of strings", key->n * sizeof(uint64_t));
	key->strings = malloc((key->n ? key->n : 1) * sizeof(*key->strings));
	if (!key->strings)
		return fm_fail(FM_ERR_NO_MEMORY, "%s: no memory for %" PRIu64 " strings of key %s",
			       in->path, key->n, printable(key->name).text);
	for (uint64_t i = 0; i < key->n; i++) {
		int err;

		key->strings[i] = in->pos;
		err = read_string(in, "a string of an array", &text);
		if (err)
			return err;
	}
	return 0;
}

static int read_array(struct cursor *in, struct gguf_key *key)
{
	uint32_t element;
	int err = read_bytes(in, "an array's element type", &element, sizeof(element));

	if (!err)
		err = read_bytes(in, "an array's length", &key->n, sizeof(key->n));
	if (err)
		return err;
	if (element >= N_VALUE_TYPES)
		return fm_fail(FM_ERR_CORRUPT, "%s: array %s has unknown element type %u: damaged",
			       in->path, printable(key->name).text, element);
	if (element == GGUF_ARRAY)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: key %s is an array of arrays: no model "
			       "that this build knows needs one",
			       in->path, printable(key->name).text);
	key->element = element;
	key->value = in->base + in->pos;
	if (element == GGUF_STRING)
		return read_array_strings(in, key);
	if (key->n > (in->size - in->pos) / value_bytes[element])
		return fm_fail(FM_ERR_CORRUPT,
			       "%s: array %s at byte %" PRIu64 " claims %" PRIu64
			       " elements but the file ends at %" PRIu64
			       ": truncated or damaged; download it again",
			       in->path, printable(key->name).text, in->pos, key->n, in->size);
	in->pos += key->n * value_bytes[element];
	return element == GGUF_BOOL ? check_bools(in, key, key->n) : 0;
}

static int read_value(struct cursor *in, struct gguf_key *key)
{
	struct gguf_string text;
	uint32_t type;
	int err = read_bytes(in, "a key's type", &type, sizeof(type));

	if (err)
		return err;
	if (type >= N_VALUE_TYPES)
		return fm_fail(FM_ERR_CORRUPT, "%s: key %s has unknown value type %u: damaged",
			       in->path, printable(key->name).text, type);
	key->type = type;
	if (type == GGUF_ARRAY)
		return read_array(in, key);
	if (type == GGUF_STRING) {
		err = read_string(in, "a key's string", &text);
		if (err)
			return err;
		key->value = (const uint8_t *)text.data;
		key->string_len = text.len;
		return 0;
	}
	if (value_bytes[type] > in->size - in->pos)
		return truncated(in, "a key's value", value_bytes[type]);
	key->value = in->base + in->pos;
	in->pos += value_bytes[type];
	return type == GGUF_BOOL ? check_bools(in, key, 1) : 0;
}

/* ---- opening ------------------------------------------------------------------------------ */

static int check_count(const struct cursor *in, const char *what, uint64_t n, uint64_t entry_bytes,
		       uint64_t max)
{
	if (n > in->size / entry_bytes)
		return fm_fail(FM_ERR_CORRUPT,
			       "%s: claims %" PRIu64 " %s, more than fit into its %" PRIu64
			       " bytes: truncated or damaged; download it again",
			       in->path, n, what, in->size);
	if (n > max)
		return fm_fail(FM_ERR_LIMIT,
			       "%s: has %" PRIu64 " %s, at most %" PRIu64 " are supported",
			       in->path, n, what, max);
	return 0;
}

static int read_header(struct cursor *in, struct gguf *file)
{
	uint64_t n_tensors, n_keys;
	uint32_t version;
	char magic[4];
	int err;

	if (in->size < 24)
		return fm_fail(FM_ERR_CORRUPT,
			       "%s: is %" PRIu64 " bytes long, a GGUF header alone has 24: not a "
			       "model or truncated; download it again",
			       in->path, in->size);
	read_bytes(in, "the magic", magic, sizeof(magic));
	if (memcmp(magic, "GGUF", 4) != 0)
		return fm_fail(FM_ERR_CORRUPT,
			       "%s: does not begin with \"GGUF\": not a GGUF model "
			       "file",
			       in->path);
	read_bytes(in, "the version", &version, sizeof(version));
	if (__builtin_bswap32(version) == 2 || __builtin_bswap32(version) == 3)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: is a big-endian GGUF file; use the "
			       "little-endian one",
			       in->path);
	if (version != 2 && version != 3)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: is GGUF version %u, supported are 2 and 3; "
			       "convert it again with current tools",
			       in->path, version);
	read_bytes(in, "the number of tensors", &n_tensors, sizeof(n_tensors));
	read_bytes(in, "the number of keys", &n_keys, sizeof(n_keys));
	/* The least that an entry takes: name length, one byte of name and what follows it. */
	err = check_count(in, "tensors", n_tensors, 8 + 1 + 4 + 8 + 4 + 8, GGUF_TENSORS_MAX);
	if (!err)
		err = check_count(in, "keys", n_keys, 8 + 1 + 4 + 1, GGUF_KEYS_MAX);
	if (err)
		return err;
	file->keys = calloc(n_keys ? n_keys : 1, sizeof(*file->keys));
	file->tensors = calloc(n_tensors ? n_tensors : 1, sizeof(*file->tensors));
	if (!file->keys || !file->tensors || name_table_create(&file->key_table, n_keys) ||
	    name_table_create(&file->tensor_table, n_tensors))
		return fm_fail(FM_ERR_NO_MEMORY,
			       "%s: no memory for its %" PRIu64 " keys and %" PRIu64 " tensors",
			       in->path, n_keys, n_tensors);
	file->n_keys = n_keys;
	file->n_tensors = n_tensors;
	return 0;
}

static int read_keys(struct cursor *in, struct gguf *file)
{
	for (size_t i = 0; i < file->n_keys; i++) {
		struct gguf_key *key = &file->keys[i];
		uint64_t at = in->pos;
		uint32_t *slot;
		int err = read_name(in, "a key", &key->name);

		if (!err)
			err = read_value(in, key);
		if (err)
			return err;
		slot = name_table_slot(file, &file->key_table, key_name, key->name.data,
				       key->name.len);
		if (*slot)
			return fm_fail(FM_ERR_CORRUPT,
				       "%s: key %s stands twice, again at byte %" PRIu64
				       ": damaged or crafted",
				       in->path, printable(key->name).text, at);
		*slot = i + 1;
	}
	return 0;
}

static int read_alignment(const struct cursor *in, const struct gguf *file, uint32_t *alignment)
{
	*alignment = GGUF_ALIGNMENT_DEFAULT;
	if (!find_key(file, "general.alignment"))
		return 0;
	if (!gguf_get_u32(file, "general.alignment", alignment))
		return fm_fail(FM_ERR_CORRUPT, "%s: general.alignment is not a 32-bit number",
			       in->path);
	if (*alignment < 8 || *alignment > GGUF_ALIGNMENT_MAX ||
	    (*alignment & (*alignment - 1)) != 0)
		return fm_fail(FM_ERR_CORRUPT,
			       "%s: general.alignment is %u, it must be a power of "
			       "two from 8 to %u",
			       in->path, *alignment, GGUF_ALIGNMENT_MAX);
	return 0;
}

static int check_type(const struct cursor *in, const struct gguf_tensor *tensor, uint32_t type)
{
	if (type < N_TENSOR_TYPES && tensor_types[type].bytes)
		return 0;
	return fm_fail(
		FM_ERR_UNSUPPORTED,
		"%s: tensor %s has type %s (id %u), which this build cannot read; use a file "
		"quantised as Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL, F16, "
		"BF16 or "
		"F32",
		in->path, printable(tensor->name).text, gguf_type_name(type), type);
}

/* Fills type, dims and n_bytes; no sum or product here may overflow. */
static int read_shape(struct cursor *in, struct gguf_tensor *tensor)
{
	uint64_t n_elements = 1;
	uint32_t type;
	int err = read_bytes(in, "a tensor's number of dimensions", &tensor->n_dims,
			     sizeof(tensor->n_dims));

	if (err)
		return err;
	if (tensor->n_dims < 1 || tensor->n_dims > 4)
		return fm_fail(FM_ERR_CORRUPT,
			       "%s: tensor %s has %u dimensions, allowed are 1 to 4", in->path,
			       printable(tensor->name).text, tensor->n_dims);
	for (uint32_t i = 0; i < 4; i++) {
		tensor->dims[i] = 1;
		if (i >= tensor->n_dims)
			continue;
		err = read_bytes(in, "a tensor's dimension", &tensor->dims[i], 8);
		if (err)
			return err;
		if (tensor->dims[i] == 0 ||
		    __builtin_mul_overflow(n_elements, tensor->dims[i], &n_elements) ||
		    n_elements > INT64_MAX)
			return fm_fail(FM_ERR_CORRUPT,
				       "%s: tensor %s has dimension %u of %" PRIu64
				       ": zero or too large; damaged",
				       in->path, printable(tensor->name).text, i, tensor->dims[i]);
	}
	err = read_bytes(in, "a tensor's type", &type, sizeof(type));
	if (!err)
		err = check_type(in, tensor, type);
	if (err)
		return err;
	tensor->type = type;
	if (tensor->dims[0] % tensor_types[type].block != 0)
		return fm_fail(FM_ERR_CORRUPT,
			       "%s: tensor %s has rows of %" PRIu64
			       " elements, not a multiple of %s's block of %u",
			       in->path, printable(tensor->name).text, tensor->dims[0],
			       gguf_type_name(type), tensor_types[type].block);
	if (__builtin_mul_overflow(n_elements / tensor_types[type].block, tensor_types[type].bytes,
				   &tensor->n_bytes))
		return fm_fail(FM_ERR_CORRUPT, "%s: tensor %s is larger than any file", in->path,
			       printable(tensor->name).text);
	return 0;
}

static int read_tensors(struct cursor *in, struct gguf *file)
{
	for (size_t i = 0; i < file->n_tensors; i++) {
		struct gguf_tensor *tensor = &file->tensors[i];
		uint64_t at = in->pos;
		uint32_t *slot;
		int err = read_name(in, "a tensor's name", &tensor->name);

		if (!err)
			err = read_shape(in, tensor);
		/* Relative to the data for now: where those begin is known after the last entry. */
		if (!err)
			err = read_bytes(in, "a tensor's offset", &tensor->file_offset, 8);
		if (err)
			return err;
		slot = name_table_slot(file, &file->tensor_table, tensor_name, tensor->name.data,
				       tensor->name.len);
		if (*slot)
			return fm_fail(FM_ERR_CORRUPT,
				       "%s: tensor %s stands twice, again at byte %" PRIu64
				       ": damaged or crafted",
				       in->path, printable(tensor->name).text, at);
		*slot = i + 1;
	}
	return 0;
}

static int place_tensors(struct cursor *in, struct gguf *file, uint32_t alignment)
{
	uint64_t start = (in->pos + alignment - 1) & ~(uint64_t)(alignment - 1);
	uint64_t total = 0; /* cannot overflow: each is at most the file's size, below 2^47 */

	file->data_start = start;
	for (size_t i = 0; i < file->n_tensors; i++) {
		struct gguf_tensor *tensor = &file->tensors[i];
		uint64_t offset, end;

		if (tensor->file_offset % alignment != 0)
			return fm_fail(FM_ERR_CORRUPT,
				       "%s: tensor %s is at offset %" PRIu64
				       ", not a multiple of the alignment %u: damaged",
				       in->path, printable(tensor->name).text, tensor->file_offset,
				       alignment);
		if (__builtin_add_overflow(start, tensor->file_offset, &offset) ||
		    __builtin_add_overflow(offset, tensor->n_bytes, &end))
			return fm_fail(FM_ERR_CORRUPT,
				       "%s: tensor %s at offset %" PRIu64 " with %" PRIu64
				       " bytes is beyond any file: damaged",
				       in->path, printable(tensor->name).text, tensor->file_offset,
				       tensor->n_bytes);
		if (end > in->size)
			return fm_fail(
				FM_ERR_CORRUPT,
				"%s: tensor %s needs bytes %" PRIu64 "..%" PRIu64
				" but the file ends at %" PRIu64 ": truncated; download it again",
				in->path, printable(tensor->name).text, offset, end, in->size);
		tensor->file_offset = offset;
		tensor->data = in->base + offset;
		total += tensor->n_bytes;
	}
	/* Else a small file could claim any amount of weights by naming the same bytes again. */
	if (total > in->size)
		return fm_fail(FM_ERR_CORRUPT,
			       "%s: its tensors take %" PRIu64 " bytes but the file has %" PRIu64
			       ": they overlap; damaged or crafted",
			       in->path, total, in->size);
	return 0;
}

static int parse(struct gguf *file)
{
	struct cursor in = {.base = file->base, .size = file->size, .path = file->path};
	uint32_t alignment;
	int err = read_header(&in, file);

	if (!err)
		err = read_keys(&in, file);
	if (!err)
		err = read_alignment(&in, file, &alignment);
	if (!err)
		err = read_tensors(&in, file);
	if (!err)
		err = place_tensors(&in, file, alignment);
	return err;
}

int gguf_open_memory(const void *data, size_t size, const char *label, struct gguf **out)
{
	struct gguf *file = calloc(1, sizeof(*file));
	int err;

	*out = NULL;
	if (!file)
		return fm_fail(FM_ERR_NO_MEMORY, "%s: no memory to open it", label);
	file->base = data;
	file->size = size;
	file->path = strdup(label);
	err = file->path ? parse(file)
			 : fm_fail(FM_ERR_NO_MEMORY, "%s: no memory to open it", label);
	if (err) {
		gguf_close(file);
		return err;
	}
	*out = file;
	return 0;
}

static int fail_errno(const char *path, const char *what)
{
	int err = errno == ENOENT || errno == ENOTDIR ? FM_ERR_NOT_FOUND
		  : errno == EACCES || errno == EPERM ? FM_ERR_PERMISSION
		  : errno == ENOMEM		      ? FM_ERR_NO_MEMORY
						      : FM_ERR_IO;
	const char *remedy = err == FM_ERR_NOT_FOUND ? "; give the path of a .gguf file"
			     : err == FM_ERR_PERMISSION
				     ? "; let this user read it (chmod) or run as one who may"
				     : "";

	return fm_fail(err, "%s: cannot %s: %s%s", path, what, strerror(errno), remedy);
}

int gguf_open(const char *path, struct gguf **out)
{
	struct stat status;
	void *base;
	int err, fd;

	*out = NULL;
	/* Non-blocking: a pipe in the file's place must not hang the program. */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return fail_errno(path, "open it");
	if (fstat(fd, &status) != 0) {
		err = fail_errno(path, "read its size");
		goto close_fd;
	}
	if (!S_ISREG(status.st_mode)) {
		err = fm_fail(FM_ERR_INVALID, "%s: is not a file; give the path of a .gguf file",
			      path);
		goto close_fd;
	}
	if (status.st_size == 0) {
		err = fm_fail(FM_ERR_CORRUPT, "%s: is empty; download it again", path);
		goto close_fd;
	}
	base = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (base == MAP_FAILED) {
		err = fail_errno(path, "map it into memory");
		goto close_fd;
	}
	err = gguf_open_memory(base, status.st_size, path, out);
	if (err)
		munmap(base, status.st_size);
	else
		(*out)->is_mapped = true;
close_fd:
	close(fd);
	return err;
}

void gguf_close(struct gguf *file)
{
	if (!file)
		return;
	for (size_t i = 0; i < file->n_keys; i++)
		free(file->keys[i].strings);
	free(file->keys);
	free(file->tensors);
	free(file->key_table.slots);
	free(file->tensor_table.slots);
	if (file->is_mapped)
		munmap((void *)file->base, file->size);
	free(file->path);
	free(file);
}

/* ---- looking -------------------------------------------------------------------------------- */

const char *gguf_path(const struct gguf *file)
{
	return file->path;
}

uint64_t gguf_file_size(const struct gguf *file)
{
	return file->size;
}

size_t gguf_n_tensors(const struct gguf *file)
{
	return file->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *file, size_t i)
{
	return i < file->n_tensors ? &file->tensors[i] : NULL;
}

const struct gguf_tensor *gguf_tensor(const struct gguf *file, const char *name)
{
	uint32_t slot =
		*name_table_slot(file, &file->tensor_table, tensor_name, name, strlen(name));

	return slot ? &file->tensors[slot - 1] : NULL;
}

size_t gguf_n_keys(const struct gguf *file)
{
	return file->n_keys;
}

struct gguf_string gguf_key_at(const struct gguf *file, size_t i, enum gguf_type *type)
{
	if (type)
		*type = file->keys[i].type;
	return file->keys[i].name;
}

/* An integer of the file as a sign and a magnitude's worth of bits: false for other types. */
static bool load_integer(enum gguf_type type, const uint8_t *at, int64_t *value, bool *is_huge)
{
	union {
		uint8_t u8;
		int8_t i8;
		uint16_t u16;
		int16_t i16;
		uint32_t u32;
		int32_t i32;
		uint64_t u64;
		int64_t i64;
	} raw = {.u64 = 0};

	*is_huge = false;
	if (type == GGUF_STRING || type == GGUF_ARRAY || type == GGUF_F32 || type == GGUF_F64 ||
	    type == GGUF_BOOL)
		return false;
	memcpy(&raw, at, value_bytes[type]);
	switch (type) {
	case GGUF_U8:
		*value = raw.u8;
		return true;
	case GGUF_I8:
		*value = raw.i8;
		return true;
	case GGUF_U16:
		*value = raw.u16;
		return true;
	case GGUF_I16:
		*value = raw.i16;
		return true;
	case GGUF_U32:
		*value = raw.u32;
		return true;
	case GGUF_I32:
		*value = raw.i32;
		return true;
	case GGUF_U64:
		*is_huge = raw.u64 > INT64_MAX;
		*value = (int64_t)(raw.u64 & INT64_MAX);
		return true;
	default:
		*value = raw.i64;
		return true;
	}
}

static bool load_float(enum gguf_type type, const uint8_t *at, float *out)
{
	double wide;

	if (type == GGUF_F32) {
		memcpy(out, at, sizeof(*out));
		return true;
	}
	if (type != GGUF_F64)
		return false;
	memcpy(&wide, at, sizeof(wide));
	/* Out of float's range: converting would be undefined. */
	if (isfinite(wide) && fabs(wide) > (double)__FLT_MAX__)
		return false;
	*out = (float)wide;
	return true;
}

bool gguf_get_u32(const struct gguf *file, const char *key, uint32_t *out)
{
	const struct gguf_key *found = find_key(file, key);
	bool is_huge;
	int64_t value;

	if (!found || !load_integer(found->type, found->value, &value, &is_huge))
		return false;
	if (is_huge || value < 0 || value > UINT32_MAX)
		return false;
	*out = (uint32_t)value;
	return true;
}

bool gguf_has(const struct gguf *file, const char *key)
{
	return find_key(file, key) != NULL;
}

bool gguf_get_f32(const struct gguf *file, const char *key, float *out)
{
	const struct gguf_key *found = find_key(file, key);

	return found && load_float(found->type, found->value, out);
}

bool gguf_get_bool(const struct gguf *file, const char *key, bool *out)
{
	const struct gguf_key *found = find_key(file, key);

	if (!found || found->type != GGUF_BOOL)
		return false;
	*out = found->value[0] != 0;
	return true;
}

bool gguf_get_string(const struct gguf *file, const char *key, struct gguf_string *out)
{
	const struct gguf_key *found = find_key(file, key);

	if (!found || found->type != GGUF_STRING)
		return false;
	out->data = (const char *)found->value;
	out->len = found->string_len;
	return true;
}

bool gguf_get_array(const struct gguf *file, const char *key, enum gguf_type *type, size_t *n)
{
	const struct gguf_key *found = find_key(file, key);

	if (!found || found->type != GGUF_ARRAY)
		return false;
	*type = found->element;
	*n = found->n;
	return true;
}

/* The array @key when it has an element @i, else NULL. */
static const struct gguf_key *find_element(const struct gguf *file, const char *key, size_t i)
{
	const struct gguf_key *found = find_key(file, key);

	return found && found->type == GGUF_ARRAY && i < found->n ? found : NULL;
}

bool gguf_array_string(const struct gguf *file, const char *key, size_t i, struct gguf_string *out)
{
	const struct gguf_key *found = find_element(file, key, i);
	uint64_t len;

	if (!found || found->element != GGUF_STRING)
		return false;
	memcpy(&len, file->base + found->strings[i], sizeof(len));
	out->data = (const char *)file->base + found->strings[i] + sizeof(len);
	out->len = len;
	return true;
}

bool gguf_array_i64(const struct gguf *file, const char *key, size_t i, int64_t *out)
{
	const struct gguf_key *found = find_element(file, key, i);
	bool is_huge;

	if (!found)
		return false;
	/* Patterns (sliding-window layers) stand as booleans in some files, as 0 and 1 in others.
	 */
	if (found->element == GGUF_BOOL) {
		*out = found->value[i];
		return true;
	}
	return load_integer(found->element, found->value + i * value_bytes[found->element], out,
			    &is_huge) &&
	       !is_huge;
}

bool gguf_array_f32(const struct gguf *file, const char *key, size_t i, float *out)
{
	const struct gguf_key *found = find_element(file, key, i);

	return found &&
	       load_float(found->element, found->value + i * value_bytes[found->element], out);
}
