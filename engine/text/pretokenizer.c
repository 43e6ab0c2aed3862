// SPDX-License-Identifier: Apache-2.0
/*
 * The pre-tokenizers by name: each is a list of regular expressions. An expression splits a piece
 * of text into its matches and what lies between them; the next one splits each of those again, and
 * sees nothing beyond the piece. Invariant: no expression matches the empty string.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fabricmgr.h>

#include "text/pretokenizer.h"

#define STAGES_MAX 4

/* Unicode's White_Space, written out: PCRE2's own \s has one character more (U+180E). */
#define SPACES                                                                                     \
	"\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}"                           \
	"\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define S     "[" SPACES "]"
#define NOT_S "[^" SPACES "]"
#define GPT2                                                                                       \
	"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACES "\\p{L}\\p{N}]+|" S "+(?!" NOT_S \
	")"
#define LLAMA3(digits)                                                                             \
	"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"  \
	"|" digits "| ?[^" SPACES "\\p{L}\\p{N}]+[\\r\\n]*|" S "*[\\r\\n]+|" S "+(?!" NOT_S ")|" S \
	"+"

/* As in llama.cpp's src/llama-vocab.cpp: "default" is its own, not GPT-2's. */
static const struct rules {
	const char *name;
	bool ignores_merges;
	bool adds_bos;
	const char *stages[STAGES_MAX];
} all_rules[] = {
	{"smollm", false, false, {"\\p{N}", GPT2}},
	{"llama-bpe", true, true, {LLAMA3("\\p{N}{1,3}")}},
	{"qwen2", false, false, {LLAMA3("\\p{N}")}},
	{"gpt-2", false, false, {GPT2}},
	{"default",
	 false,
	 false,
	 {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

struct fm_pretokenizer {
	const struct rules *rules;
	size_t n_stages;
	pcre2_code *stages[STAGES_MAX];
	pcre2_match_context *context;
};

struct split {
	const struct fm_pretokenizer *pre;
	pcre2_match_data *match[STAGES_MAX];
	int (*word)(void *context, const char *word, size_t len);
	void *context;
};

static int compile(struct fm_pretokenizer *pre, const char *pattern)
{
	PCRE2_SIZE offset;
	int code;
	pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
					     PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);

	if (!compiled && code == PCRE2_ERROR_HEAP_FAILED)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for pre-tokenizer %s",
			       pre->rules->name);
	if (!compiled)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "pre-tokenizer %s does not compile (PCRE2 error "
			       "%d at %zu): PCRE2 must be built with Unicode support",
			       pre->rules->name, code, offset);
	/* Where this machine has no JIT, matching interprets: slower, the same words. */
	pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
	pre->stages[pre->n_stages++] = compiled;
	return 0;
}

int fm_pretokenizer_create(const char *name, size_t len, struct fm_pretokenizer **out)
{
	const struct rules *rules = NULL;
	struct fm_pretokenizer *pre;
	int err = 0;

	*out = NULL;
	for (size_t i = 0; i < sizeof(all_rules) / sizeof(all_rules[0]); i++) {
		if (strlen(all_rules[i].name) == len && memcmp(all_rules[i].name, name, len) == 0)
			rules = &all_rules[i];
	}
	if (!rules)
		return FM_ERR_NOT_FOUND;
	pre = calloc(1, sizeof(*pre));
	if (!pre)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for pre-tokenizer %s", rules->name);
	pre->rules = rules;
	pre->context = pcre2_match_context_create(NULL);
	if (!pre->context)
		err = fm_fail(FM_ERR_NO_MEMORY, "no memory for pre-tokenizer %s", rules->name);
	else /* a megabyte of blanks is one long match, not an attack: these rules run in O(n) */
		pcre2_set_match_limit(pre->context, UINT32_MAX);
	for (size_t i = 0; !err && i < STAGES_MAX && rules->stages[i]; i++)
		err = compile(pre, rules->stages[i]);
	if (err) {
		fm_pretokenizer_destroy(pre);
		return err;
	}
	*out = pre;
	return 0;
}

void fm_pretokenizer_destroy(struct fm_pretokenizer *pre)
{
	if (!pre)
		return;
	for (size_t i = 0; i < pre->n_stages; i++)
		pcre2_code_free(pre->stages[i]);
	pcre2_match_context_free(pre->context);
	free(pre);
}

const char *fm_pretokenizer_known(void)
{
	return "smollm, llama-bpe, qwen2, gpt-2, default";
}

bool fm_pretokenizer_ignores_merges(const struct fm_pretokenizer *pre)
{
	return pre->rules->ignores_merges;
}

bool fm_pretokenizer_adds_bos(const struct fm_pretokenizer *pre)
{
	return pre->rules->adds_bos;
}

static int split_stage(const struct split *split, size_t stage, const char *text, size_t len)
{
	size_t at = 0;
	int err = 0;

	if (len == 0)
		return 0;
	if (stage == split->pre->n_stages)
		return split->word(split->context, text, len);
	while (at < len && !err) {
		int found =
			pcre2_match(split->pre->stages[stage], (PCRE2_SPTR)text, len, at,
				    PCRE2_NO_UTF_CHECK, split->match[stage], split->pre->context);
		PCRE2_SIZE *range = pcre2_get_ovector_pointer(split->match[stage]);
		size_t start, end;

		if (found == PCRE2_ERROR_NOMATCH)
			break;
		if (found < 0 || range[1] <= range[0])
			return fm_fail(
				found == PCRE2_ERROR_NOMEMORY ? FM_ERR_NO_MEMORY : FM_ERR_LIMIT,
				"pre-tokenizer %s failed on a text of %zu bytes (PCRE2 error "
				"%d); send a shorter text",
				split->pre->rules->name, len, found);
		start = range[0];
		end = range[1];
		err = split_stage(split, stage + 1, text + at, start - at);
		if (!err)
			err = split_stage(split, stage + 1, text + start, end - start);
		at = end;
	}
	return err ? err : split_stage(split, stage + 1, text + at, len - at);
}

int fm_pretokenizer_split(const struct fm_pretokenizer *pre, const char *text, size_t len,
			  int (*word)(void *context, const char *word, size_t len), void *context)
{
	struct split split = {.pre = pre, .word = word, .context = context};
	int err = 0;

	for (size_t i = 0; i < pre->n_stages; i++) {
		split.match[i] = pcre2_match_data_create(1, NULL);
		if (!split.match[i])
			err = fm_fail(FM_ERR_NO_MEMORY, "no memory to split a text of %zu bytes",
				      len);
	}
	if (!err)
		err = split_stage(&split, 0, text, len);
	for (size_t i = 0; i < pre->n_stages; i++)
		pcre2_match_data_free(split.match[i]);
	return err;
}
