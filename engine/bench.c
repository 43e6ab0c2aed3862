// SPDX-License-Identifier: Apache-2.0
/*
 * `fabric-engine bench`: how fast this machine computes prompts and generates, through the same
 * step loop, pool and sampler as a worker's. Prompts are random, so nothing is found cached except
 * what a test's own depth put there. Invariant: a speed is given for tokens that were computed: a
 * test whose count differs from what it asked for fails.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "bench.h"
#include "embedded_pool.h"
#include "json_memory.h"
#include "model/gguf.h"
#include "model/threads.h"
#include "options.h"
#include "text/tokenizer.h"
#include "worker/engine.h"

enum { LIST_MAX = 16, REPEATS_MAX = 1000, WARM_UP_STEPS = 4, READS = 5 };

struct list {
	uint32_t values[LIST_MAX];
	size_t n;
};

struct bench {
	struct fm_engine_flags flags;
	struct list prompts, generates, depths, batches;
	uint32_t repeats;
	bool json;
	struct fm_model *model;
	struct fm_tokenizer *tokenizer;
	struct fm_embedded_pool *pool;
	struct fm_engine *engine;
	uint32_t *tokens; /* of one prompt, up to the model's context */
	uint64_t random, fresh;
	double read_limit; /* bytes a second */
	/* What the engine told since it was last set to zero. */
	uint32_t n_tokens, n_prefilled, n_computed;
	int error;
};

struct test {
	bool is_prefill;
	uint32_t n, depth, batch;
	uint64_t seed;
};

static const char help[] =
	"usage: fabric-engine bench -m FILE [OPTION…]\n\n"
	"Tokens a second of prompts (pp) and of generation (tg), pool and sampling included.\n"
	"Each option of numbers takes several: 512,2048\n\n"
	"  -p, --prompt N        tokens of a prompt (512); 0: none of these tests\n"
	"  -n, --generate N      steps of generation (128); 0: none of these tests\n"
	"  -d, --depth N         tokens that stand before them already (0); multiples of 16\n"
	"  -b, --batch N         sequences that generate at once (1)\n"
	"  -r, --repeats N       runs of a test after one to warm up (5); the median counts\n"
	"      --json            one JSON object a test\n" FM_ENGINE_OPTIONS_HELP;

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* ---- the machine's limit -------------------------------------------------------------------- */

struct reading {
	const uint64_t *words;
	_Atomic uint64_t sum;
};

static void read_words(void *argument, size_t first, size_t end)
{
	struct reading *job = argument;
	uint64_t sums[32] = {0};

	for (size_t i = first * 512; i < end * 512; i += 32)
		for (size_t j = 0; j < 32; j++)
			sums[j] += job->words[i + j];
	for (size_t j = 0; j < 32; j++)
		job->sum += sums[j];
}

/* The fastest of some pure reads of as many bytes as a step reads, by as many threads. */
static int measure_read_limit(struct bench *bench, uint64_t bytes)
{
	size_t n_pages = bytes / 4096;
	struct reading job = {.words = aligned_alloc(4096, n_pages * 4096)};
	struct fm_threads *threads = NULL;
	int err = fm_threads_create(bench->flags.model_options.threads, &threads);

	if (!err && !job.words)
		err = fm_fail(FM_ERR_NO_MEMORY, "no memory to measure reads of %zu pages", n_pages);
	if (!err)
		memset((void *)job.words, 1, n_pages * 4096);
	for (int i = 0; !err && i < READS; i++) {
		double start = now_s(), rate;

		fm_threads_run(threads, n_pages, 64, read_words, &job);
		rate = (double)n_pages * 4096 / (now_s() - start);
		bench->read_limit = rate > bench->read_limit ? rate : bench->read_limit;
	}
	fm_threads_destroy(threads);
	free((void *)job.words);
	return err;
}

/* Bytes of weights that a step reads: all but an embedding that is looked up only. */
static uint64_t step_weight_bytes(const struct bench *bench)
{
	const struct gguf *file = fm_model_gguf(bench->model);
	const struct gguf_tensor *embedding = gguf_tensor(file, "token_embd.weight");
	uint64_t bytes = fm_model_info(bench->model)->weight_bytes;

	if (embedding && gguf_tensor(file, "output.weight"))
		bytes -= embedding->n_bytes;
	return bytes;
}

/* ---- the engine ------------------------------------------------------------------------------ */

static int on_event(void *context, void *owner, const struct fm_engine_event *event)
{
	struct bench *bench = context;

	(void)owner;
	switch (event->kind) {
	case FM_EVENT_TOKEN:
		bench->n_tokens++;
		break;
	case FM_EVENT_PREFILLED:
		bench->n_prefilled++;
		/* fallthrough */
	case FM_EVENT_DONE:
		bench->n_computed += event->counts.computed;
		break;
	case FM_EVENT_ERROR:
		bench->error = fm_fail(event->error, "%s", event->message);
		break;
	}
	return 0;
}

static int open_engine(struct bench *bench)
{
	struct fm_attach_options attach = {.size = sizeof(attach),
					   .fd = -1,
					   .socket = bench->flags.pool_socket,
					   .name = "bench"};
	struct fm_engine_options options;
	uint32_t budget = bench->flags.chunk, batch = 1;
	int err = fm_model_open(bench->flags.model, &bench->flags.model_options, &bench->model);

	for (size_t i = 0; i < bench->batches.n; i++)
		batch = bench->batches.values[i] > batch ? bench->batches.values[i] : batch;
	if (!err)
		err = fm_tokenizer_create(fm_model_gguf(bench->model), &bench->tokenizer);
	if (!err && !bench->flags.pool_socket) {
		err = fm_embedded_pool_start(bench->flags.pool_bytes, &bench->pool);
		if (!err)
			err = fm_embedded_pool_connect(bench->pool, &attach.fd);
	}
	if (err)
		return err;
	bench->tokens = malloc(fm_model_info(bench->model)->context_length * sizeof(uint32_t));
	if (!bench->tokens)
		return fm_fail(FM_ERR_NO_MEMORY, "bench: out of memory");
	options = (struct fm_engine_options){
		.model = bench->model,
		.tokenizer = bench->tokenizer,
		.attach = attach,
		.max_batch = batch,
		.token_budget = budget > batch ? budget : batch,
	};
	return fm_engine_create(&options, on_event, bench, &bench->engine);
}

static void fill_random(struct bench *bench, uint32_t first, uint32_t n)
{
	uint32_t vocab = fm_model_info(bench->model)->vocab_size;

	for (uint32_t i = first; i < first + n; i++) { /* xorshift64 */
		bench->random ^= bench->random << 13;
		bench->random ^= bench->random >> 7;
		bench->random ^= bench->random << 17;
		bench->tokens[i] = (uint32_t)(bench->random % vocab);
	}
}

static int submit(struct bench *bench, enum fm_request_kind kind, uint64_t id, uint32_t n_tokens)
{
	struct fm_request request = {
		.kind = kind,
		.id = id,
		.tokens = bench->tokens,
		.n_tokens = n_tokens,
		.n_prompt = n_tokens,
		.max_tokens = UINT32_MAX,
		.sampling = FM_SAMPLING_NEUTRAL,
	};

	return fm_engine_submit(bench->engine, &request);
}

static int check_computed(const struct bench *bench, uint32_t expected)
{
	if (bench->n_computed != expected)
		return fm_fail(FM_ERR_LIMIT,
			       "%u tokens of prompts were computed where %u should be: the pool "
			       "does not hold the depth; give a larger --pool-size",
			       bench->n_computed, expected);
	return 0;
}

/* Computes the prompt in bench->tokens[0..n) and checks that @expected of it was not cached. */
static int prefill(struct bench *bench, uint32_t n, uint32_t expected)
{
	int err = submit(bench, FM_REQUEST_PREFILL, 1, n);

	bench->n_prefilled = bench->n_computed = 0;
	while (!err && !bench->error && !bench->n_prefilled)
		fm_engine_step(bench->engine);
	if (err || bench->error)
		return err ? err : bench->error;
	return check_computed(bench, expected);
}

/* ---- the tests ------------------------------------------------------------------------------- */

/*
 * What stands before the timed tokens is computed once for a test and found in the pool by its
 * runs: the same random numbers give the same prompts again.
 */
static int prepare(struct bench *bench, const struct test *test)
{
	int err = 0;

	bench->random = test->seed;
	for (uint32_t i = 0; !err && test->depth && i < test->batch; i++) {
		fill_random(bench, 0, test->depth);
		err = prefill(bench, test->depth, test->depth);
	}
	bench->fresh = bench->random; /* the next tokens that nobody has seen */
	return err;
}

static int run_prefill(struct bench *bench, const struct test *test, double *seconds)
{
	double start;
	int err;

	bench->random = test->seed;
	fill_random(bench, 0, test->depth);
	bench->random = bench->fresh;
	fill_random(bench, test->depth, test->n);
	bench->fresh = bench->random;
	start = now_s();
	err = prefill(bench, test->depth + test->n, test->n);
	*seconds = now_s() - start;
	return err;
}

/* A first step together computes what the pool could not give of the sequences' prompts, at least a
 * token of each. What is timed after it is @steps of generation and nothing else. */
static int run_generate(struct bench *bench, const struct test *test, uint32_t steps,
			double *seconds)
{
	uint32_t depth = test->depth ? test->depth : 1;
	double start;
	int err = 0;

	bench->random = test->seed;
	bench->n_tokens = bench->n_computed = 0;
	for (uint32_t i = 0; !err && i < test->batch; i++) {
		fill_random(bench, 0, depth);
		err = submit(bench, FM_REQUEST_GENERATE, i + 1, depth);
	}
	while (!err && !bench->error && bench->n_tokens < test->batch)
		fm_engine_step(bench->engine);
	bench->n_tokens = 0;
	start = now_s();
	for (uint32_t i = 0; !err && !bench->error && i < steps; i++)
		fm_engine_step(bench->engine);
	*seconds = now_s() - start;
	for (uint32_t i = 0; i < test->batch; i++)
		fm_engine_cancel(bench->engine, NULL, i + 1);
	if (err || bench->error)
		return err ? err : bench->error;
	if (bench->n_tokens != steps * test->batch)
		return fm_fail(FM_ERR_LIMIT, "%u tokens were generated where %u should be",
			       bench->n_tokens, steps * test->batch);
	return check_computed(bench, test->batch * (depth - (depth - 1) / 16 * 16));
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int print_json(const struct bench *bench, const struct test *test, const double *rates,
		      const char *name, double read)
{
	const struct fm_model_info *info = fm_model_info(bench->model);
	json_t *samples = json_array(), *out;

	for (uint32_t i = 0; i < bench->repeats; i++)
		json_array_append_new(samples, json_real(rates[i]));
	out = json_pack("{s:s,s:i,s:i,s:i,s:i,s:f,s:o,s:s,s:s,s:s,s:i}", "test", name, "tokens",
			(int)test->n, "depth", (int)test->depth, "batch", (int)test->batch,
			"repeats", (int)bench->repeats, "tokens_per_s", rates[bench->repeats / 2],
			"sorted", samples, "model", info->name, "numerics", info->numerics_id,
			"isa", info->isa, "threads", (int)info->threads);
	if (!test->is_prefill) {
		json_object_set_new(out, "read_bytes_per_s", json_real(read));
		json_object_set_new(out, "read_limit_bytes_per_s", json_real(bench->read_limit));
	}
	return fm_json_print(out, JSON_COMPACT | JSON_REAL_PRECISION(6));
}

/* One warm-up and the repeats of a test; its line. */
static int run_test(struct bench *bench, const struct test *test)
{
	double rates[REPEATS_MAX], seconds, median, read = 0;
	char name[32];
	int err = prepare(bench, test);

	if (!err)
		err = test->is_prefill ? run_prefill(bench, test, &seconds)
				       : run_generate(bench, test, WARM_UP_STEPS, &seconds);
	for (uint32_t i = 0; !err && i < bench->repeats; i++) {
		err = test->is_prefill ? run_prefill(bench, test, &seconds)
				       : run_generate(bench, test, test->n, &seconds);
		rates[i] = (double)test->n * test->batch / seconds;
	}
	if (err)
		return err;
	qsort(rates, bench->repeats, sizeof(*rates), compare);
	median = rates[bench->repeats / 2];
	snprintf(name, sizeof(name), "%s%u", test->is_prefill ? "pp" : "tg", test->n);
	if (!test->is_prefill) /* the KV that a step attends to, half of the steps in */
		read = median / test->batch *
		       ((double)step_weight_bytes(bench) +
			(double)test->batch * (test->depth + test->n / 2.0) / 16 *
				(double)fm_model_block_bytes(bench->model));
	if (bench->json) {
		err = print_json(bench, test, rates, name, read);
	} else {
		printf("%-8s %7u %6u %11.1f %11.1f %11.1f", name, test->depth, test->batch, median,
		       rates[0], rates[bench->repeats - 1]);
		if (read > 0)
			printf("   %5.1f of %5.1f GB/s%s", read / 1e9, bench->read_limit / 1e9,
			       read > bench->read_limit ? " (from caches, or the machine was busy)"
							: "");
		putchar('\n');
	}
	fflush(stdout);
	return err;
}

static int check_lengths(const struct bench *bench)
{
	uint32_t context = fm_model_info(bench->model)->context_length;

	for (size_t i = 0; i < bench->depths.n; i++) {
		for (size_t j = 0; j < bench->prompts.n; j++)
			if (bench->depths.values[i] + bench->prompts.values[j] >= context)
				return fm_fail(FM_ERR_LIMIT,
					       "--depth %u --prompt %u: the model's context ends "
					       "at %u",
					       bench->depths.values[i], bench->prompts.values[j],
					       context);
		for (size_t j = 0; j < bench->generates.n; j++)
			if (bench->depths.values[i] + bench->generates.values[j] + 32 >= context)
				return fm_fail(FM_ERR_LIMIT,
					       "--depth %u --generate %u: the model's context ends "
					       "at %u",
					       bench->depths.values[i], bench->generates.values[j],
					       context);
	}
	return 0;
}

static int run_all(struct bench *bench)
{
	const struct fm_model_info *info;
	int err = open_engine(bench);

	if (!err)
		err = check_lengths(bench);
	if (!err && bench->generates.n)
		err = measure_read_limit(bench, step_weight_bytes(bench));
	if (err)
		return err;
	info = fm_model_info(bench->model);
	if (!bench->json)
		printf("%s, %.1f MB of weights, %s, %s\n%-8s %7s %6s %11s %11s %11s   %s\n",
		       info->name, (double)info->weight_bytes / 1e6, info->numerics_id, info->isa,
		       "test", "depth", "batch", "tokens/s", "least", "most", "read (weights, KV)");
	for (size_t d = 0; d < bench->depths.n; d++) {
		struct test test = {
			.depth = bench->depths.values[d], .is_prefill = true, .batch = 1};

		for (size_t i = 0; !err && i < bench->prompts.n; i++) {
			test.n = bench->prompts.values[i];
			test.seed = bench->fresh;
			err = run_test(bench, &test);
		}
		test.is_prefill = false;
		for (size_t i = 0; !err && i < bench->generates.n; i++)
			for (size_t b = 0; !err && b < bench->batches.n; b++) {
				test.n = bench->generates.values[i];
				test.seed = bench->fresh;
				test.batch = bench->batches.values[b];
				err = run_test(bench, &test);
			}
	}
	return err;
}

/* ---- options --------------------------------------------------------------------------------- */

/* Numbers from @min to @max; a lone 0 leaves the list empty where @min is above it. */
static int take_list(const char *what, const char *text, uint32_t min, uint32_t max,
		     struct list *out)
{
	const char *at = text;

	out->n = 0;
	if (min && !strcmp(text, "0"))
		return 0;
	for (;;) {
		char *end;
		unsigned long value;

		errno = 0;
		value = strtoul(at, &end, 10);
		if (end == at || *at < '0' || *at > '9' || errno || value < min || value > max ||
		    (*end && *end != ',') || out->n == LIST_MAX)
			return fm_fail(
				FM_ERR_INVALID,
				"%s %s: give up to %d numbers from %u to %u, such as 128,512", what,
				text, LIST_MAX, min, max);
		out->values[out->n++] = (uint32_t)value;
		if (!*end)
			return 0;
		at = end + 1;
	}
}

enum { OPT_JSON = 1000 };

static const struct option long_options[] = {FM_ENGINE_LONG_OPTIONS,
					     {"prompt", required_argument, NULL, 'p'},
					     {"generate", required_argument, NULL, 'n'},
					     {"depth", required_argument, NULL, 'd'},
					     {"batch", required_argument, NULL, 'b'},
					     {"repeats", required_argument, NULL, 'r'},
					     {"json", no_argument, NULL, OPT_JSON},
					     {0}};

static int take(void *arg, int flag, const char *value)
{
	struct bench *bench = arg;
	int taken = fm_engine_flags_take(&bench->flags, flag, value);

	if (taken)
		return taken < 0 ? taken : 0;
	switch (flag) {
	case 'p':
		return take_list("--prompt", value, 1, 1u << 20, &bench->prompts);
	case 'n':
		return take_list("--generate", value, 1, 1u << 20, &bench->generates);
	case 'd':
		return take_list("--depth", value, 0, 1u << 20, &bench->depths);
	case 'b':
		return take_list("--batch", value, 1, FM_SCHEDULER_REQUESTS_MAX, &bench->batches);
	case 'r':
		return fm_parse_u32("--repeats", value, 1, REPEATS_MAX, &bench->repeats);
	default:
		bench->json = true;
		return 0;
	}
}

static int check(const struct bench *bench, int argc, char **argv)
{
	const uint32_t per_block = bench->flags.model_options.tokens_per_block;
	int err = fm_engine_flags_finish(&bench->flags, argc, argv);

	if (!err && (!bench->depths.n || !bench->batches.n))
		err = fm_fail(FM_ERR_INVALID, "give a --depth and a --batch");
	if (!err && !bench->prompts.n && !bench->generates.n)
		err = fm_fail(FM_ERR_INVALID,
			      "-p 0 and -n 0 leave no test: give one of them a number above 0");
	for (size_t i = 0; !err && i < bench->depths.n; i++)
		if (bench->depths.values[i] % per_block)
			err = fm_fail(FM_ERR_INVALID,
				      "--depth %u: give a multiple of %u, the tokens of a block",
				      bench->depths.values[i], per_block);
	return err;
}

int fm_bench_main(int argc, char **argv)
{
	static const struct fm_command command = {"fabric-engine bench", ":m:t:p:n:d:b:r:h",
						  long_options, help, take};
	struct bench bench = {
		.prompts = {{512}, 1},
		.generates = {{128}, 1},
		.depths = {{0}, 1},
		.batches = {{1}, 1},
		.repeats = 5,
		.fresh = 0x9e3779b97f4a7c15ull,
	};
	int status, err;

	fm_engine_flags_init(&bench.flags);
	status = fm_command_parse(&command, argc, argv, &bench);
	if (status != FM_COMMAND_GO)
		return status;
	if (check(&bench, argc, argv))
		return fm_usage_error(command.name);
	err = run_all(&bench);
	if (err)
		fprintf(stderr, "%s: %s\n", command.name, fm_error_detail());
	fm_engine_destroy(bench.engine);
	fm_embedded_pool_stop(bench.pool);
	fm_tokenizer_destroy(bench.tokenizer);
	fm_model_close(bench.model);
	free(bench.tokens);
	return err ? FM_EXIT_FAILED : 0;
}
