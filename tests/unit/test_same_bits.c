// SPDX-License-Identifier: Apache-2.0
/*
 * One prompt, its raw logits compared as memory: every chunk size from 1 to 64, with 1, 2 and 4
 * threads, on every instruction set, alone and beside others, and once more from cache, in each
 * precision and KV type. The engine and a pool, in one process; tests/process/test_same_bits.py
 * does the programs.
 *
 * The default precision has every chunk with every number of threads; the others have one number
 * for each chunk, in turn, unless SAME_BITS_ALL is set.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include <model/gguf.h>
#include <worker/engine.h>

#include "lone_run.h"
#include "pool_rig.h"
#include "tiny_model.h"

enum {
	PROMPT = 67, /* ends within its fifth block */
	GENERATED = 3,
	CHUNK_MAX = 64,
	REQUESTS = 8, /* the prompt and its neighbours */
	POOL_ENTRIES = 160,
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	CHUNK_STEP = 21,
#else
	CHUNK_STEP = 1,
#endif
};

/* Heads of 64 dimensions: AVX-512 has a path of its own for them. */
static const struct tiny_model shape = {
	.n_layers = 1,
	.dim = 128,
	.n_heads = 2,
	.n_kv_heads = 1,
	.ffn_dim = 64,
	.vocab = 50,
	.context = 96,
	.matrix_type = GGML_Q4_1,
};

static const struct kind {
	enum fm_precision precision;
	enum fm_element kv_element;
	const char *name;
} kinds[] = {
	{FM_PRECISION_Q16, FM_ELEMENT_F16, "q16, KV f16"},
	{FM_PRECISION_Q16, FM_ELEMENT_F32, "q16, KV f32"},
	{FM_PRECISION_Q8, FM_ELEMENT_F16, "q8, KV f16"},
	{FM_PRECISION_Q8, FM_ELEMENT_F32, "q8, KV f32"},
	{FM_PRECISION_F32, FM_ELEMENT_F16, "f32, KV f16"},
	{FM_PRECISION_F32, FM_ELEMENT_F32, "f32, KV f32"},
};

static const char *const isas[] = {"portable", "avx2", "avx512", "amx"};

static char path[SCRATCH_MAX];

struct bits {
	const struct kind *kind;
	struct lone_run lone[REQUESTS];
	struct pool_rig rig;
	/* The case that runs. */
	const char *isa;
	unsigned int threads, chunk;
	uint32_t n_seen[REQUESTS], n_cached;
};

/* NULL when the machine lacks @isa. */
static struct fm_model *open_model(const struct kind *kind, const char *isa, unsigned int threads)
{
	struct fm_model_options options = {
		.precision = kind->precision,
		.kv_element = kind->kv_element,
		.threads = threads,
		.isa = isa,
		.tokens_per_block = 16,
	};
	struct fm_model *model = NULL;
	int err = fm_model_open(path, &options, &model);

	ck_assert_msg(!err || err == FM_ERR_UNSUPPORTED, "%s", fm_error_detail());
	return model;
}

/* The first is the prompt. */
static void create_lone(const struct kind *kind, struct lone_run *runs, int n)
{
	static const uint32_t lengths[REQUESTS] = {PROMPT, 16, 1, 17, 3, 33, 2, 15};
	struct fm_model *model = open_model(kind, "portable", 1);
	const struct fm_sampling sampling = FM_SAMPLING_NEUTRAL;
	uint32_t prompt[96];

	for (int i = 0; i < n; i++) {
		for (uint32_t j = 0; j < lengths[i]; j++)
			prompt[j] = (uint32_t)((j * j * 31 + j * 7 + (uint32_t)i * 977 + 5) %
					       shape.vocab);
		lone_run_create(model, prompt, lengths[i], GENERATED, &sampling, &runs[i]);
	}
	fm_model_close(model);
}

static int on_event(void *context, void *owner, const struct fm_engine_event *event)
{
	struct bits *bits = context;
	struct lone_run *lone = owner;
	uint32_t *seen = &bits->n_seen[lone - bits->lone];
	size_t bytes = shape.vocab * sizeof(float);

	if (event->kind == FM_EVENT_TOKEN) {
		ck_assert_msg(!memcmp(event->logits, (uint8_t *)lone->logits + *seen * bytes,
				      bytes),
			      "%s, %s, %u threads, chunk %u: request %d: the logits of position %u "
			      "differ",
			      bits->kind->name, bits->isa, bits->threads, bits->chunk,
			      (int)(lone - bits->lone), event->position);
		ck_assert_uint_eq(event->sample->token, lone->tokens[event->position]);
		ck_assert_uint_eq(event->position, lone->n_prompt + *seen);
		(*seen)++;
	} else {
		ck_assert_msg(event->kind == FM_EVENT_DONE, "%s", event->message);
		ck_assert_uint_eq(*seen, GENERATED);
		bits->n_cached = event->counts.cached;
		*seen = 0;
	}
	return 0;
}

static void submit(struct bits *bits, struct fm_engine *engine, int number)
{
	struct lone_run *lone = &bits->lone[number];
	struct fm_request request = {
		.kind = FM_REQUEST_GENERATE,
		.id = (uint64_t)number,
		.owner = lone,
		.tokens = lone->tokens,
		.n_prompt = lone->n_prompt,
		.n_tokens = lone->n_prompt,
		.max_tokens = GENERATED,
		.sampling = FM_SAMPLING_NEUTRAL,
	};

	ck_assert_msg(!fm_engine_submit(engine, &request), "%s", fm_error_detail());
}

/* The prompt @beside others, then again from cache, in a namespace that nobody used before. */
static void check_chunk(struct bits *bits, struct fm_model *model, int beside)
{
	char salt[64];
	struct fm_engine_options options = {
		.model = model,
		.attach = {.size = sizeof(options.attach), .fd = -1, .socket = bits->rig.socket},
		.tenant_salt = salt,
		.max_batch = bits->chunk < REQUESTS ? bits->chunk : REQUESTS,
		.token_budget = bits->chunk,
	};
	struct fm_engine *engine;

	snprintf(salt, sizeof(salt), "%s/%u/%u", bits->isa, bits->threads, bits->chunk);
	ck_assert_msg(!fm_engine_create(&options, on_event, bits, &engine), "%s",
		      fm_error_detail());
	for (int i = 0; i <= beside; i++)
		submit(bits, engine, beside - i);
	while (fm_engine_step(engine))
		;
	submit(bits, engine, 0);
	while (fm_engine_step(engine))
		;
	ck_assert_uint_eq(bits->n_cached, PROMPT / 16 * 16);
	fm_engine_destroy(engine);
}

START_TEST(the_same_bits_in_every_chunk_thread_count_and_instruction_set)
{
	struct bits *bits = calloc(1, sizeof(*bits));
	bool is_all = _i == 0 || getenv("SAME_BITS_ALL");
	uint32_t n = 0;

	ck_assert_ptr_nonnull(bits);
	bits->kind = &kinds[_i];
	create_lone(bits->kind, bits->lone, REQUESTS);
	pool_rig_start_small(&bits->rig, POOL_ENTRIES);
	for (int i = 0; i < 4; i++) {
		bits->isa = isas[i];
		for (bits->threads = 1; bits->threads <= 4; bits->threads *= 2) {
			struct fm_model *model = open_model(bits->kind, bits->isa, bits->threads);
			unsigned int turn = bits->threads / 2; /* 0, 1, 2 */

			if (!model) {
				if (bits->threads == 1)
					fprintf(stderr, "NOTE: same_bits: %s\n", fm_error_detail());
				continue;
			}
			for (bits->chunk = 1; bits->chunk <= CHUNK_MAX; bits->chunk += CHUNK_STEP) {
				if (!is_all && (bits->chunk + (unsigned int)_i) % 3 != turn)
					continue;
				/* Alone and beside 1 to 7 others; in the slow portable C 1. */
				check_chunk(bits, model, (int)(n++ % (i ? REQUESTS : 2)));
			}
			fm_model_close(model);
		}
	}
	fprintf(stderr, "NOTE: same_bits: %s: %u cases\n", bits->kind->name, n);
	for (int i = 0; i < REQUESTS; i++)
		lone_run_destroy(&bits->lone[i]);
	pool_rig_stop(&bits->rig);
	free(bits);
}
END_TEST

/* The comparison could tell: each precision and KV type has bits of its own. */
START_TEST(other_arithmetic_gives_other_bits)
{
	struct lone_run runs[6];

	for (int i = 0; i < 6; i++) {
		create_lone(&kinds[i], &runs[i], 1);
		for (int j = 0; j < i; j++)
			ck_assert_msg(memcmp(runs[i].logits, runs[j].logits,
					     GENERATED * shape.vocab * sizeof(float)),
				      "%s gives the bits of %s", kinds[i].name, kinds[j].name);
	}
	for (int i = 0; i < 6; i++)
		lone_run_destroy(&runs[i]);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("same_bits");
	TCase *tests = tcase_create("same_bits");
	SRunner *runner = srunner_create(suite);
	char cache[SCRATCH_MAX];
	int failed;

	scratch_folder(cache);
	setenv("XDG_CACHE_HOME", cache, 1);
	if (tiny_model_write(&shape, path))
		return 1;
	tcase_set_timeout(tests, 600);
	tcase_add_loop_test(tests, the_same_bits_in_every_chunk_thread_count_and_instruction_set, 0,
			    6);
	tcase_add_test(tests, other_arithmetic_gives_other_bits);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	scratch_remove(cache);
	unlink(path);
	return failed ? 1 : 0;
}
