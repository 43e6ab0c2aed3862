/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a GGUF file's tensors to packed weights. Called by the architectures' load functions, twice:
 * once to check every tensor and add up the sizes, once to pack. Invariant: a weight is resident
 * once; pages of the file that have been packed are given back.
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/state.h"

int fm_arena_create(size_t bytes, uint8_t **out)
{
	void *arena = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	*out = NULL;
	if (arena == MAP_FAILED)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for %zu bytes of weights: %s", bytes,
			       strerror(errno));
	madvise(arena, bytes, MADV_HUGEPAGE); /* advice only: small pages work as well, slower */
	*out = arena;
	return 0;
}

void fm_arena_destroy(uint8_t *arena, size_t bytes)
{
	if (arena)
		munmap(arena, bytes);
}

static void *take(struct fm_loader *loader, size_t bytes)
{
	void *at = loader->arena ? loader->arena + loader->used : NULL;

	loader->used += (bytes + 63) / 64 * 64;
	return at;
}

/* Lets go of the file's pages that lie wholly within a tensor that is no longer needed. */
static void release_pages(const struct gguf_tensor *tensor)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t first = ((uintptr_t)tensor->data + page - 1) / page * page;
	uintptr_t end = ((uintptr_t)tensor->data + tensor->n_bytes) / page * page;

	if (first < end)
		madvise((void *)first, end - first, MADV_DONTNEED);
}

static int find_tensor(struct fm_loader *loader, const char *name, const struct gguf_tensor **out)
{
	*out = gguf_tensor(loader->file, name);
	if (!*out)
		return fm_fail(FM_ERR_INVALID, "%s: tensor %s is missing", gguf_path(loader->file),
			       name);
	loader->n_tensors++;
	loader->file_bytes += (*out)->n_bytes;
	loader->parameters += (*out)->dims[0] * (*out)->dims[1] * (*out)->dims[2] * (*out)->dims[3];
	return 0;
}

static int find_format(const struct fm_loader *loader, const char *name,
		       const struct gguf_tensor *tensor, enum fm_format *out)
{
	if (fm_format_find(tensor->type, out))
		return 0;
	return fm_fail(FM_ERR_UNSUPPORTED,
		       "%s: tensor %s has type %s, with which no kernel computes: use a file with "
		       "other types",
		       gguf_path(loader->file), name, gguf_type_name(tensor->type));
}

struct pack_job {
	const struct fm_matrix *matrix;
	const void *tensor;
};

static void pack(void *argument, size_t first, size_t end)
{
	const struct pack_job *job = argument;

	fm_matrix_pack(job->matrix, job->tensor, first, end);
}

static int load_matrix(struct fm_loader *loader, const char *name, uint32_t rows, uint32_t columns,
		       bool may_be_level, struct fm_matrix *out)
{
	const char *path = gguf_path(loader->file);
	const struct gguf_tensor *tensor;
	struct pack_job job = {.matrix = out};
	int error = find_tensor(loader, name, &tensor);

	if (error)
		return error;
	if (tensor->n_dims != 2 || tensor->dims[0] != columns || tensor->dims[1] != rows ||
	    rows == 0 || columns % FM_BLOCK_COLUMNS)
		return fm_fail(FM_ERR_INVALID,
			       "%s: tensor %s has %u dimensions, %llu by %llu: expected %u by %u",
			       path, name, tensor->n_dims, (unsigned long long)tensor->dims[0],
			       (unsigned long long)tensor->dims[1], columns, rows);
	if ((error = find_format(loader, name, tensor, &out->format)))
		return error;
	if (tensor->n_bytes != rows * fm_format_row_bytes(out->format, columns))
		return fm_fail(FM_ERR_INVALID, "%s: tensor %s has %llu bytes: expected %zu", path,
			       name, (unsigned long long)tensor->n_bytes,
			       rows * fm_format_row_bytes(out->format, columns));
	out->rows = rows;
	out->columns = columns;
	out->is_level = may_be_level && fm_format_may_be_level(out->format);
	out->group_bytes = out->is_level ? fm_format_level_group_bytes(out->format, columns)
					 : fm_format_group_bytes(out->format, columns);
	out->data = take(loader, fm_matrix_groups(out) * out->group_bytes);
	if (!out->data)
		return 0;
	job.tensor = tensor->data;
	fm_threads_run(loader->threads, fm_matrix_groups(out), 4, pack, &job);
	release_pages(tensor);
	return 0;
}

int fm_load_matrix(struct fm_loader *loader, const char *name, uint32_t rows, uint32_t columns,
		   struct fm_matrix *out)
{
	return load_matrix(loader, name, rows, columns, false, out);
}

int fm_load_level_matrix(struct fm_loader *loader, const char *name, uint32_t rows,
			 uint32_t columns, struct fm_matrix *out)
{
	return load_matrix(loader, name, rows, columns, loader->may_be_level, out);
}

int fm_load_vector(struct fm_loader *loader, const char *name, uint32_t n, float **out)
{
	const struct gguf_tensor *tensor;
	enum fm_format format;
	int error = find_tensor(loader, name, &tensor);

	if (error)
		return error;
	if ((error = find_format(loader, name, tensor, &format)))
		return error;
	if (fm_format_is_quantised(format))
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: tensor %s has type %s: a vector must be F32, F16 or BF16",
			       gguf_path(loader->file), name, gguf_type_name(tensor->type));
	if (tensor->n_dims != 1 || tensor->dims[0] != n ||
	    tensor->n_bytes != fm_format_row_bytes(format, n))
		return fm_fail(FM_ERR_INVALID, "%s: tensor %s has %llu elements: expected %u",
			       gguf_path(loader->file), name, (unsigned long long)tensor->dims[0],
			       n);
	*out = take(loader, n * sizeof(float));
	if (*out)
		fm_vector_unpack(format, tensor->data, n, *out);
	return 0;
}
