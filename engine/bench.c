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
#include "machine_limits.h"
#include "model/gguf.h"
#include "options.h"
#include "text/tokenizer.h"
#include "worker/engine.h"

enum { LIST_MAX = 16, REPEATS_MAX = 1000, WARM_UP_STEPS = 4 };

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
	struct fm_machine_limits limits;
	/* What the engine told since it was last set to zero. */
	uint32_t n_tokens, n_prefilled, n_computed;
	int error;
	uint64_t times[FM_OPERATION_COUNT]; /* of the model, when a timed run began */
};

struct test {
	bool is_prefill;
	uint32_t n, depth, batch;
	uint64_t seed;
};

/* What a test came to. */
struct result {
	double rates[REPEATS_MAX]; /* sorted */
	double median;
	double seconds;		       /* of all repeats */
	double of[FM_OPERATION_COUNT]; /* of those, by operation */
	double read;		       /* bytes of weights and KV a second; 0: not of this test */
	double macs; /* multiply-adds a second in the layers' products; 0 likewise */
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

/* ---- what a step needs ----------------------------------------------------------------------- */

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

/* Multiply-adds of the layers' matrices with one token. */
static double token_macs(const struct bench *bench)
{
	const struct gguf *file = fm_model_gguf(bench->model);
	const struct fm_model_info *info = fm_model_info(bench->model);
	uint64_t rows = gguf_tensor(file, "output.weight") ? 2 * (uint64_t)info->vocab_size
							   : info->vocab_size;

	return (double)(info->parameters - rows * info->dim);
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
	fm_model_times(bench->model, bench->times);
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
	fm_model_times(bench->model, bench->times);
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

static int print_json(const struct bench *bench, const struct test *test,
		      const struct result *result, const char *name)
{
	const struct fm_model_info *info = fm_model_info(bench->model);
	json_t *samples = json_array(), *shares = json_object(), *out;

	for (uint32_t i = 0; i < bench->repeats; i++)
		json_array_append_new(samples, json_real(result->rates[i]));
	for (int i = 0; i < FM_OPERATION_COUNT; i++)
		json_object_set_new(shares, fm_operation_name(i),
				    json_real(result->of[i] / result->seconds));
	out = json_pack("{s:s,s:i,s:i,s:i,s:i,s:f,s:o,s:o,s:s,s:s,s:s,s:i}", "test", name, "tokens",
			(int)test->n, "depth", (int)test->depth, "batch", (int)test->batch,
			"repeats", (int)bench->repeats, "tokens_per_s", result->median, "sorted",
			samples, "time_shares", shares, "model", info->name, "numerics",
			info->numerics_id, "isa", info->isa, "threads", (int)info->threads);
	if (result->read > 0) {
		json_object_set_new(out, "read_bytes_per_s", json_real(result->read));
		json_object_set_new(out, "read_limit_bytes_per_s",
				    json_real(bench->limits.bytes_per_s));
	}
	if (result->macs > 0 && bench->limits.macs_per_s > 0) {
		json_object_set_new(out, "product_macs_per_s", json_real(result->macs));
		json_object_set_new(out, "vnni_limit_macs_per_s",
				    json_real(bench->limits.macs_per_s));
	}
	return fm_json_print(out, JSON_COMPACT | JSON_REAL_PRECISION(6));
}

/* The operations that took more than one part in a hundred, the largest first. */
static void print_operations(const struct result *result)
{
	bool is_told[FM_OPERATION_COUNT] = {false};
	double rest = 1.0;

	printf("        ");
	for (;;) {
		int most = -1;

		for (int i = 0; i < FM_OPERATION_COUNT; i++)
			if (!is_told[i] && (most < 0 || result->of[i] > result->of[most]))
				most = i;
		if (most < 0 || result->of[most] < 0.01 * result->seconds)
			break;
		is_told[most] = true;
		rest -= result->of[most] / result->seconds;
		printf(" %s %.0f %%,", fm_operation_name(most),
		       100 * result->of[most] / result->seconds);
	}
	printf(" rest %.0f %%\n", 100 * rest);
}

static void print_row(const struct bench *bench, const struct test *test,
		      const struct result *result, const char *name)
{
	printf("%-8s %7u %6u %11.1f %11.1f %11.1f", name, test->depth, test->batch, result->median,
	       result->rates[0], result->rates[bench->repeats - 1]);
	if (result->read > 0)
		printf("   reads %.1f of %.1f GB/s, %.0f %%%s", result->read / 1e9,
		       bench->limits.bytes_per_s / 1e9,
		       100 * result->read / bench->limits.bytes_per_s,
		       result->read > bench->limits.bytes_per_s
			       ? " (from caches, or the machine was busy)"
			       : "");
	if (result->macs > 0 && bench->limits.macs_per_s > 0)
		printf("   products %.0f of %.0f GMAC/s, %.0f %%", result->macs / 1e9,
		       bench->limits.macs_per_s / 1e9,
		       100 * result->macs / bench->limits.macs_per_s);
	putchar('\n');
	print_operations(result);
}

/* Sorts the rates, and sets them against what had to be read or multiplied. */
static void finish_result(const struct bench *bench, const struct test *test, struct result *result)
{
	double products = 0;

	qsort(result->rates, bench->repeats, sizeof(*result->rates), compare);
	result->median = result->rates[bench->repeats / 2];
	for (int i = 0; i < FM_OPERATION_COUNT; i++)
		products += fm_operation_is_product(i) ? result->of[i] : 0;
	if (test->is_prefill && products > 0)
		result->macs = token_macs(bench) * test->n * bench->repeats / products;
	if (!test->is_prefill) /* the KV that a step attends to, half of the steps in */
		result->read = result->median / test->batch *
			       ((double)step_weight_bytes(bench) +
				(double)test->batch * (test->depth + test->n / 2.0) / 16 *
					(double)fm_model_block_bytes(bench->model));
}

/* One warm-up and the repeats of a test; its line. */
static int run_test(struct bench *bench, const struct test *test)
{
	static struct result result;
	uint64_t after[FM_OPERATION_COUNT];
	double seconds;
	char name[32];
	int err = prepare(bench, test);

	memset(&result, 0, sizeof(result));
	if (!err)
		err = test->is_prefill ? run_prefill(bench, test, &seconds)
				       : run_generate(bench, test, WARM_UP_STEPS, &seconds);
	for (uint32_t i = 0; !err && i < bench->repeats; i++) {
		err = test->is_prefill ? run_prefill(bench, test, &seconds)
				       : run_generate(bench, test, test->n, &seconds);
		fm_model_times(bench->model, after);
		for (int j = 0; j < FM_OPERATION_COUNT; j++)
			result.of[j] += (double)(after[j] - bench->times[j]) / 1e9;
		result.rates[i] = (double)test->n * test->batch / seconds;
		result.seconds += seconds;
	}
	if (err)
		return err;
	finish_result(bench, test, &result);
	snprintf(name, sizeof(name), "%s%u", test->is_prefill ? "pp" : "tg", test->n);
	if (bench->json)
		err = print_json(bench, test, &result, name);
	else
		print_row(bench, test, &result, name);
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
	if (!err)
		err = fm_machine_limits_measure(
			bench->flags.model_options.threads, fm_model_kernels(bench->model),
			bench->generates.n ? step_weight_bytes(bench) : 0, &bench->limits);
	if (err)
		return err;
	info = fm_model_info(bench->model);
	if (!bench->json)
		printf("%s, %.1f MB of weights, %s, %s\n%-8s %7s %6s %11s %11s %11s   %s\n",
		       info->name, (double)info->weight_bytes / 1e6, info->numerics_id, info->isa,
		       "test", "depth", "batch", "tokens/s", "least", "most",
		       "of the machine's limit; then where the time went");
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
	bench.flags.model_options.is_timed = true;
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
