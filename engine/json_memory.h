/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether jansson ran out of memory. Its calls say so in as many ways as there are calls, some not
 * at all (a value that is missing, an "invalid token"), and a list of tokens with one missing is a
 * wrong answer. So its allocations are counted here: who composes or parses JSON ignores the single
 * results and asks once, at the end. Invariant: the answer is the calling thread's own.
 */
#ifndef FM_ENGINE_JSON_MEMORY_H
#define FM_ENGINE_JSON_MEMORY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* True when an allocation of jansson failed on this thread since it was asked last: then what was
 * composed or parsed since is not complete, and must not be used. */
bool fm_json_was_short(void);
/* json_loadb(), safe without memory: jansson 2.14 forgets a byte of a string whose buffer cannot
 * grow, and when that byte is the closing quote, writes on behind it. NULL also when it was
 * short. */
json_t *fm_json_load(const char *text, size_t len, size_t flags, json_error_t *error);
/* Prints the whole as one line and takes it over. FM_ERR_NO_MEMORY: nothing was printed. */
int fm_json_print(json_t *root, size_t flags);
/* Says so for memory that a part of the composition wanted from elsewhere. */
void fm_json_be_short(void);

#endif
