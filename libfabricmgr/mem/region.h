/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that can be shared: anonymous files of a size that nobody can change, on the best rung
 * that the machine has (hugetlb memfd, then memfd). The pool's drivers call it. Invariant: a file
 * handed out cannot be truncated by its holder, so a mapping never faults beyond it.
 */
#ifndef FM_MEM_REGION_H
#define FM_MEM_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fm_rung { FM_RUNG_HUGETLB = 1, FM_RUNG_MEMFD = 2 };

struct fm_memory {
	enum fm_rung rung;
	char reason[160]; /* why not the rung above; "" on the highest */
};

const char *fm_rung_name(enum fm_rung rung);
/* Chooses the rung for @bytes: @wanted NULL (best), "hugetlb" or "memfd". */
int fm_memory_choose(const char *wanted, uint64_t bytes, struct fm_memory *out);
struct fm_cgroup_memory;
/* FM_ERR_NO_MEMORY, with the sum, when @pool_bytes and @table_bytes do not fit into the machine's
 * memory or into what @group (NULL: no limit) leaves, beside @other_bytes of this process. */
int fm_memory_check(const struct fm_memory *memory, const struct fm_cgroup_memory *group,
		    uint64_t pool_bytes, uint64_t table_bytes, uint64_t other_bytes);

/* A sparse file of mode 0600 whose size is sealed. Returns the descriptor or an error. */
int fm_region_create(enum fm_rung rung, const char *name, uint64_t bytes);
/* The same for memory that one client writes until it unmaps it: see fm_region_has_ended(). */
int fm_region_create_table(const char *name, uint64_t bytes);
/* True: nobody maps the table for writing, and nobody ever will again; or the client sealed its
 * seals, so that this cannot be found: what it holds there counts no more. @fd: one that may write.
 */
bool fm_region_has_ended(int fd);
/* Whether @fd is a file of that size, which nobody can shrink. */
bool fm_region_is_ours(int fd, uint64_t bytes);
/* Whether @fd is of memory at all: closing it, or asking for its status, waits for nobody. */
bool fm_region_is_memory(int fd);
/* Whether @fd, which came from a client of @uid, may be handed to others for reading: memory in
 * whole chunks that nobody can make smaller, of the client's own, and a descriptor that cannot
 * write. FM_ERR_INVALID, FM_ERR_PERMISSION or FM_ERR_LIMIT, with what is wrong. */
struct stat;
int fm_region_check_adopted(int fd, uint32_t uid, struct stat *status);
/* A second descriptor of the same file that cannot write. */
int fm_region_reopen_read_only(int fd);
int fm_region_populate(int fd, uint64_t offset, uint64_t bytes);
/* Gives memory back; what cannot be is logged. */
void fm_region_punch(int fd, uint64_t offset, uint64_t bytes);

/* Maps the whole file; not inherited by children. NULL with the detail set. */
void *fm_region_map(int fd, uint64_t bytes, bool is_writable);
void fm_region_unmap(void *memory, uint64_t bytes);

#endif
