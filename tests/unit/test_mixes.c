// SPDX-License-Identifier: Apache-2.0
/*
 * Random mixes of requests on a small pool: shared prefixes, lengths around the edges of blocks,
 * tiles and chunks, arrivals, cancels, hand-overs between two engines, eviction, preemption, a pool
 * that is restarted. Whatever happens, every request's tokens and raw logits are those of its lone
 * run. Prints its seed and what it met; none of that may be zero.
 *
 * MIXES (200): how many. MIX_SEED: the seed. MIX_FIRST: begin at this one, to repeat a failure.
 * MIX_ISA: the instruction set of all.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <check.h>

#include <model/gguf.h>
#include <worker/engine.h>

#include "lone_run.h"
#include "pool_rig.h"
#include "tiny_model.h"

enum {
	BLOCK = 16,   /* tokens of a KV block */
	TILE = 16,    /* tokens of an activation tile */
	CONTEXT = 160,
	TRUNKS = 2,   /* prefixes that prompts share */
	REQUESTS_MAX = 10,
	STEPS_MAX = 20000,
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	MIXES = 40,
#else
	MIXES = 200,
#endif
	ENOUGH = 100, /* mixes among which the rarest event cannot fail to be by chance */
};

static const struct tiny_model shapes[] = {
	{.n_layers = 2,
	 .dim = 192,
	 .n_heads = 3,
	 .n_kv_heads = 1,
	 .ffn_dim = 96,
	 .vocab = 101,
	 .context = CONTEXT,
	 .matrix_type = GGML_Q4_1},
	{.n_layers = 2,
	 .dim = 128,
	 .n_heads = 4,
	 .n_kv_heads = 2,
	 .ffn_dim = 96,
	 .vocab = 64,
	 .context = CONTEXT,
	 .matrix_type = GGML_F16},
	{.architecture = "qwen2",
	 .n_layers = 2,
	 .dim = 64,
	 .n_heads = 2,
	 .n_kv_heads = 1,
	 .ffn_dim = 96,
	 .vocab = 70,
	 .context = CONTEXT,
	 .matrix_type = GGML_Q4_1},
	{.architecture = "qwen3",
	 .n_layers = 2,
	 .dim = 64,
	 .n_heads = 2,
	 .n_kv_heads = 1,
	 .head_dim = 64,
	 .ffn_dim = 96,
	 .vocab = 70,
	 .context = CONTEXT,
	 .matrix_type = GGML_Q8_0},
	{.n_layers = 2,
	 .dim = 64,
	 .n_heads = 1,
	 .n_kv_heads = 1,
	 .ffn_dim = 96,
	 .vocab = 70,
	 .context = CONTEXT,
	 .window = 40, /* Mistral */
	 .matrix_type = GGML_Q4_1},
	{.architecture = "gemma3",
	 .n_layers = 4,
	 .dim = 64,
	 .n_heads = 2,
	 .n_kv_heads = 1,
	 .head_dim = 64,
	 .ffn_dim = 96,
	 .vocab = 70,
	 .context = CONTEXT,
	 .window = 21,
	 .extra_key = "attention.sliding_window_pattern",
	 .matrix_type = GGML_Q5_0},
};

enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static char paths[SHAPES][SCRATCH_MAX];

/* What a mix may meet; counted by mixes. */
enum event {
	BLOCK_EDGE,
	TILE_EDGE,
	CHUNK_EDGE,
	EVICTION,
	PREEMPTION,
	CACHE_HIT,
	CANCEL,
	HAND_OVER,
	RESTART,
	EVENTS
};

static const char *const event_names[EVENTS] = {
	"block edge", "tile edge", "chunk edge", "eviction", "preemption",
	"cache hit",  "cancel",	   "hand-over",	 "restart",
};

struct request {
	struct lone_run lone;
	struct fm_sampling sampling;
	uint32_t arrival, cancel; /* steps; cancel 0: never */
	bool is_split;		  /* prefill on one engine, the rest on the other */
	bool wants_decode, has_tail, is_submitted, is_over;
	struct fm_key tail;
	uint32_t n_seen; /* tokens that came */
};

struct mix {
	uint64_t random, number;
	const char *isa;
	uint32_t chunk, max_batch, threads, n_requests, vocab, restart;
	struct fm_model *model, *alone;
	struct pool_rig rig;
	struct fm_engine *engines[2]; /* 0 takes whole requests and prefills, 1 goes on */
	uint32_t trunks[TRUNKS][CONTEXT];
	struct request requests[REQUESTS_MAX];
	uint64_t evictions;
	bool met[EVENTS];
};

/* ---- random choices ----------------------------------------------------------------------- */

static uint32_t below(struct mix *mix, uint32_t n)
{
	/* SplitMix64 */
	uint64_t z = mix->random += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return (uint32_t)((z ^ z >> 31) % n);
}

static bool one_in(struct mix *mix, uint32_t n)
{
	return below(mix, n) == 0;
}

static uint32_t choose_length(struct mix *mix)
{
	uint32_t edge = BLOCK * (1 + below(mix, 6));

	if (one_in(mix, 24))
		return CONTEXT - 1 - below(mix, 3);
	return one_in(mix, 3) ? 1 + below(mix, 100) : edge - 1 + below(mix, 3);
}

static uint32_t choose_chunk(struct mix *mix)
{
	static const uint32_t edges[] = {1, 15, 16, 17, 31, 32, 33, 64};

	return one_in(mix, 2) ? edges[below(mix, 8)] : 1 + below(mix, 64);
}

static void choose_prompt(struct mix *mix, uint32_t *prompt, uint32_t n)
{
	const uint32_t *trunk = mix->trunks[below(mix, TRUNKS)];
	uint32_t shared = one_in(mix, 2) ? n : below(mix, n + 1);

	for (uint32_t i = 0; i < n; i++)
		prompt[i] = i < shared ? trunk[i] : below(mix, mix->vocab);
	/* The trunk's later blocks after another first one: equal tokens, different KV. */
	if (one_in(mix, 3))
		prompt[0] = (prompt[0] + 1) % mix->vocab;
}

static void choose_request(struct mix *mix, struct request *request)
{
	uint32_t prompt[CONTEXT], n = choose_length(mix), max;

	request->arrival = below(mix, 12);
	request->cancel = one_in(mix, 5) ? request->arrival + 1 + below(mix, 20) : 0;
	request->is_split = one_in(mix, 4);
	request->sampling = FM_SAMPLING_NEUTRAL;
	if (one_in(mix, 2)) {
		request->sampling.temperature = 1;
		request->sampling.top_p = 0.95f;
		request->sampling.top_k = 40;
		request->sampling.seed = below(mix, 1000);
		request->sampling.choice = below(mix, 3);
	}
	if (one_in(mix, 4)) { /* they look back over prompt and answer */
		request->sampling.repetition_penalty = 1.2f;
		request->sampling.frequency_penalty = 0.5f;
	}
	max = one_in(mix, 3) ? 1 + below(mix, 3) : 1 + below(mix, 24);
	choose_prompt(mix, prompt, n);
	lone_run_create(mix->alone, prompt, n, max, &request->sampling, &request->lone);
}

static struct fm_model *open_model(const struct mix *mix, const struct fm_model_options *options,
				   int shape)
{
	struct fm_model *model;

	ck_assert_msg(!fm_model_open(paths[shape], options, &model), "mix %" PRIu64 ": %s",
		      mix->number, fm_error_detail());
	return model;
}

static void choose_models(struct mix *mix)
{
	static const enum fm_precision precisions[] = {FM_PRECISION_Q16, FM_PRECISION_Q8,
						       FM_PRECISION_F32};
	int shape = (int)below(mix, SHAPES);
	struct fm_model_options options = {
		.precision = precisions[below(mix, 3)],
		.kv_element = one_in(mix, 3) ? FM_ELEMENT_F32 : FM_ELEMENT_F16,
		.threads = 1,
		.isa = one_in(mix, 10) ? "portable" : mix->isa, /* it takes most of the time */
		.tokens_per_block = BLOCK,
	};

	mix->alone = open_model(mix, &options, shape);
	options.threads = mix->threads = 1u << below(mix, 3);
	options.isa = mix->isa;
	mix->model = open_model(mix, &options, shape);
	mix->vocab = fm_model_info(mix->model)->vocab_size;
}

/* ---- what the engines say ----------------------------------------------------------------- */

static void check_token(struct mix *mix, struct request *request,
			const struct fm_engine_event *event)
{
	const struct lone_run *lone = &request->lone;
	const float *logits = lone->logits + (size_t)request->n_seen * mix->vocab;
	uint32_t position = lone->n_prompt + request->n_seen;

	ck_assert_msg(request->n_seen < lone->n_generated, "mix %" PRIu64 ": one token too many",
		      mix->number);
	ck_assert_uint_eq(event->position, position);
	ck_assert_msg(!memcmp(event->logits, logits, mix->vocab * sizeof(*logits)),
		      "mix %" PRIu64 ", request %" PRIu64
		      ": the logits differ at position %u (prompt of %u)",
		      mix->number, event->id, position, lone->n_prompt);
	ck_assert_msg(event->sample->token == lone->tokens[position],
		      "mix %" PRIu64 ", request %" PRIu64 ": the tokens differ at position %u",
		      mix->number, event->id, position);
	request->n_seen++;
}

static void check_counts(struct mix *mix, const struct request *request,
			 const struct fm_request_counts *counts)
{
	const struct lone_run *lone = &request->lone;
	uint32_t budget = mix->chunk > mix->max_batch ? mix->chunk : mix->max_batch;

	mix->met[CACHE_HIT] |= counts->cached > 0;
	mix->met[CHUNK_EDGE] |= counts->computed > budget;
	mix->met[BLOCK_EDGE] |=
		request->n_seen > 1 && (lone->n_prompt - 1) / BLOCK !=
					       (lone->n_prompt + request->n_seen - 2) / BLOCK;
}

static int on_event(void *context, void *owner, const struct fm_engine_event *event)
{
	struct mix *mix = context;
	struct request *request = owner;

	ck_assert(!request->is_over);
	switch (event->kind) {
	case FM_EVENT_PREFILLED:
		check_token(mix, request, event);
		check_counts(mix, request, &event->counts);
		request->is_over = request->lone.n_generated == 1;
		request->wants_decode = !request->is_over;
		request->has_tail = event->has_tail;
		request->tail = event->tail;
		break;
	case FM_EVENT_TOKEN:
		check_token(mix, request, event);
		break;
	case FM_EVENT_DONE:
		check_counts(mix, request, &event->counts);
		mix->met[CANCEL] |= !strcmp(event->finish, "cancelled");
		if (strcmp(event->finish, "cancelled"))
			ck_assert_uint_eq(request->n_seen, request->lone.n_generated);
		request->is_over = true;
		break;
	case FM_EVENT_ERROR:
		ck_abort_msg("mix %" PRIu64 ", request %" PRIu64 ": %s", mix->number, event->id,
			     event->message);
	}
	return 0;
}

/* ---- a mix -------------------------------------------------------------------------------- */

static void create_engines(struct mix *mix)
{
	struct fm_engine_options options = {
		.model = mix->model,
		.attach = {.size = sizeof(options.attach), .fd = -1, .socket = mix->rig.socket},
		.max_batch = mix->max_batch,
		.token_budget = mix->chunk > mix->max_batch ? mix->chunk : mix->max_batch,
	};

	for (int i = 0; i < 2; i++)
		ck_assert_msg(!fm_engine_create(&options, on_event, mix, &mix->engines[i]), "%s",
			      fm_error_detail());
}

static void choose_mix(struct mix *mix)
{
	uint32_t longest, most = 0;

	choose_models(mix);
	mix->chunk = choose_chunk(mix);
	mix->max_batch = 1 + below(mix, 8);
	mix->n_requests = 5 + below(mix, REQUESTS_MAX - 4);
	mix->restart = one_in(mix, 6) ? 1 + below(mix, 30) : 0;
	for (int i = 0; i < TRUNKS; i++)
		for (int j = 0; j < CONTEXT; j++)
			mix->trunks[i][j] = below(mix, mix->vocab);
	for (uint32_t i = 0; i < mix->n_requests; i++) {
		choose_request(mix, &mix->requests[i]);
		longest = mix->requests[i].lone.n_prompt + mix->requests[i].lone.n_generated;
		most = longest > most ? longest : most;
	}
	/* The longest request and one like it on the other engine fit, or nobody could go on. */
	pool_rig_start_small(&mix->rig, 2 * (most / BLOCK + 1) + below(mix, 8));
	create_engines(mix);
}

static void submit(struct mix *mix, uint32_t number)
{
	struct request *request = &mix->requests[number];
	const struct lone_run *lone = &request->lone;
	bool is_decode = request->wants_decode;
	struct fm_request out = {
		.kind = request->is_split && !is_decode ? FM_REQUEST_PREFILL : FM_REQUEST_GENERATE,
		.id = number,
		.owner = request,
		.tokens = lone->tokens,
		.n_prompt = lone->n_prompt,
		.n_tokens = lone->n_prompt + (is_decode ? 1 : 0),
		.max_tokens = lone->n_generated - (is_decode ? 1 : 0),
		.tail = is_decode && request->has_tail ? &request->tail : NULL,
		.sampling = request->sampling,
	};

	mix->met[HAND_OVER] |= is_decode;
	request->wants_decode = false;
	request->is_submitted = true;
	ck_assert_msg(!fm_engine_submit(mix->engines[is_decode], &out), "%s", fm_error_detail());
}

static void count_evictions(struct mix *mix)
{
	struct fm_pool_info info = {.size = sizeof(info)};
	struct fm_pool *pool = fm_engine_pool(mix->engines[0]);

	if (pool && !fm_pool_info(pool, &info))
		mix->met[EVICTION] |= info.evictions > 0;
}

/* Arrivals, cancels and the restart that fall on this step; true while somebody is not over. */
static bool disturb(struct mix *mix, uint32_t step)
{
	bool goes_on = false;

	if (mix->restart == step && step) {
		count_evictions(mix);
		pool_rig_restart(&mix->rig);
		mix->met[RESTART] = true;
	}
	for (uint32_t i = 0; i < mix->n_requests; i++) {
		struct request *request = &mix->requests[i];

		if (!request->is_over && request->cancel == step && request->cancel) {
			fm_engine_cancel(mix->engines[0], request, i);
			fm_engine_cancel(mix->engines[1], request, i);
			request->is_over = true; /* also between its two engines */
		}
		if (!request->is_over &&
		    (request->wants_decode || (!request->is_submitted && request->arrival <= step)))
			submit(mix, i);
		goes_on |= !request->is_over;
	}
	return goes_on;
}

static void step_engine(struct mix *mix, struct fm_engine *engine)
{
	struct fm_engine_stats before, after;

	fm_engine_stats(engine, &before);
	fm_engine_step(engine);
	fm_engine_stats(engine, &after);
	mix->met[TILE_EDGE] |= after.computed_tokens - before.computed_tokens > TILE;
	mix->met[PREEMPTION] |= after.schedule.preemptions > 0;
}

/* When all is over nobody holds a block. */
static void check_holds(struct mix *mix)
{
	struct fm_client_info clients[4];
	int64_t n;

	for (int i = 0; i < 2; i++)
		fm_engine_step(mix->engines[i]); /* attaches again after a restart at the end */
	n = fm_engine_pool(mix->engines[0])
		    ? fm_pool_clients(fm_engine_pool(mix->engines[0]), clients, 4)
		    : 0;
	for (int64_t i = 0; i < n && i < 4; i++)
		ck_assert_msg(!clients[i].leases && !clients[i].staged,
			      "mix %" PRIu64 ": a client keeps %u leases and %u staged blocks",
			      mix->number, clients[i].leases, clients[i].staged);
}

static void destroy_mix(struct mix *mix)
{
	fm_engine_destroy(mix->engines[0]);
	fm_engine_destroy(mix->engines[1]);
	pool_rig_stop(&mix->rig);
	fm_model_close(mix->model);
	fm_model_close(mix->alone);
	for (uint32_t i = 0; i < mix->n_requests; i++)
		lone_run_destroy(&mix->requests[i].lone);
}

static void run_mix(uint64_t seed, uint64_t number, uint32_t counts[EVENTS])
{
	struct mix *mix = calloc(1, sizeof(*mix));
	uint32_t step = 0;

	ck_assert_ptr_nonnull(mix);
	mix->random = seed * 1000003 + number;
	mix->number = number;
	mix->isa = getenv("MIX_ISA");
	choose_mix(mix);
	while (disturb(mix, step)) {
		ck_assert_msg(step++ < STEPS_MAX, "mix %" PRIu64 " does not end", number);
		step_engine(mix, mix->engines[0]);
		step_engine(mix, mix->engines[1]);
	}
	count_evictions(mix);
	check_holds(mix);
	for (int i = 0; i < EVENTS; i++)
		counts[i] += mix->met[i];
	destroy_mix(mix);
	free(mix);
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

START_TEST(every_request_gives_the_bits_of_its_lone_run)
{
	uint64_t n = number_from("MIXES", MIXES), first = number_from("MIX_FIRST", 0);
	uint64_t seed = number_from("MIX_SEED", (uint64_t)time(NULL));
	uint32_t counts[EVENTS] = {0};

	fprintf(stderr, "NOTE: mixes: MIX_SEED=%" PRIu64 " MIXES=%" PRIu64 "\n", seed, n);
	for (uint64_t i = first; i < first + n; i++)
		run_mix(seed, i, counts);
	for (int i = 0; i < EVENTS; i++)
		fprintf(stderr, "%s%u %s%s", i ? ", " : "NOTE: mixes that met: ", counts[i],
			event_names[i], i == EVENTS - 1 ? "\n" : "");
	for (int i = 0; i < EVENTS && n >= ENOUGH; i++)
		ck_assert_msg(counts[i] > 0, "no mix met a %s", event_names[i]);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("mixes");
	TCase *tests = tcase_create("mixes");
	SRunner *runner = srunner_create(suite);
	char cache[SCRATCH_MAX];
	int failed;

	scratch_folder(cache);
	setenv("XDG_CACHE_HOME", cache, 1);
	fm_log_set_level(FM_LOG_ERROR); /* restarts of the pool warn */
	for (int i = 0; i < SHAPES; i++)
		if (tiny_model_write(&shapes[i], paths[i]))
			return 1;
	tcase_set_timeout(tests, 300.0 + 2.0 * (double)number_from("MIXES", MIXES));
	tcase_add_test(tests, every_request_gives_the_bits_of_its_lone_run);
	suite_add_tcase(suite, tests);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	scratch_remove(cache);
	for (int i = 0; i < SHAPES; i++)
		unlink(paths[i]);
	return failed ? 1 : 0;
}
