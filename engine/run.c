// SPDX-License-Identifier: Apache-2.0
/*
 * `fabric-engine run`: one prompt, one answer, on an engine with a pool of its own (or the
 * daemon's). The same step loop as a worker's, so its tokens are the fleet's tokens.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "embedded_pool.h"
#include "json_memory.h"
#include "options.h"
#include "progress.h"
#include "run.h"
#include "text/chat_template.h"
#include "text/text_stream.h"
#include "text/tokenizer.h"
#include "worker/engine.h"

struct run {
	struct fm_engine_flags flags;
	const char *prompt;
	bool json, chat, ignore_end, has_logprobs;
	const char *stops[FM_STOP_STRINGS_MAX];
	size_t n_stops;
	uint32_t max_tokens, n_top;
	struct fm_sampling sampling;
	struct fm_logit_bias bias[FM_LOGIT_BIASES_MAX];
	struct fm_tokens stop_tokens;
	struct fm_model *model;
	struct fm_tokenizer *tokenizer;
	struct fm_embedded_pool *pool;
	struct fm_engine *engine;
	struct fm_text_stream *stream;
	struct fm_tokens input, teacher;
	json_t *out_tokens, *steps;
	char *text;
	size_t text_len;
	const char *finish;
	int error;
};

static const char help[] =
	"usage: fabric-engine run -m FILE -p TEXT [OPTION…]\n\n"
	"  -p, --prompt TEXT     continue this text (control tokens in it are parsed)\n"
	"      --chat            answer TEXT as a chat message, by the model's template\n"
	"      --tokens 1,2,3    token ids instead of text\n"
	"      --teacher 4,5,6   score these tokens, one step each, instead of sampling\n"
	"  -n, --max-tokens N    default 128\n"
	"      --temperature T   0 to 2, default 0 (greedy); --top-k N, --top-p P, --min-p "
	"P, "
	"--seed N\n"
	"      --repetition-penalty R  0.01 to 100, over prompt and answer (1: off)\n"
	"      --frequency-penalty F, --presence-penalty F  -2 to 2, over the answer (0: "
	"off)\n"
	"      --logit-bias ID:B,…  added to the logits of these tokens, -100 to 100\n"
	"      --stop TEXT       end before this text (may be repeated)\n"
	"      --stop-token-ids 1,2,3  end before these tokens\n"
	"      --min-tokens N    before them, no token may end the answer\n"
	"      --ignore-end      the model's own end tokens do not end the answer\n"
	"      --json            one JSON object; --logprobs K adds the K best of each "
	"step\n" FM_ENGINE_OPTIONS_HELP;

static int parse_ids(const char *what, const char *text, struct fm_tokens *out)
{
	size_t size = strlen(text) / 2 + 1;

	fm_tokens_free(out); /* given twice: the last one holds */
	out->ids = malloc(size * sizeof(*out->ids));
	out->n = 0;
	if (!out->ids)
		return fm_fail(FM_ERR_NO_MEMORY, "%s: out of memory", what);
	for (const char *at = text; *at;) {
		char *end;
		unsigned long id;

		errno = 0;
		id = strtoul(at, &end, 10);
		if (*at < '0' || *at > '9' || errno || id > UINT32_MAX ||
		    (*end && (*end != ',' || !end[1])))
			return fm_fail(FM_ERR_INVALID, "%s %.200s: give token ids such as 1,2,3",
				       what, text);
		out->ids[out->n++] = (uint32_t)id;
		at = *end ? end + 1 : end;
	}
	return out->n ? 0 : fm_fail(FM_ERR_INVALID, "%s: give at least one token id", what);
}

/* ID:BIAS,ID:BIAS… */
static int parse_bias(struct run *run, const char *text)
{
	for (const char *at = text;;) {
		struct fm_logit_bias *bias = &run->bias[run->sampling.n_bias];
		unsigned long id;
		char *end;

		errno = 0;
		id = strtoul(at, &end, 10);
		if (end == at || *at < '0' || *at > '9' || errno || id > UINT32_MAX || *end != ':')
			break;
		if (run->sampling.n_bias == FM_LOGIT_BIASES_MAX)
			return fm_fail(FM_ERR_LIMIT, "--logit-bias: at most %d tokens",
				       FM_LOGIT_BIASES_MAX);
		at = end + 1;
		bias->id = (uint32_t)id;
		bias->bias = strtof(at, &end);
		if (end == at || (*end && *end != ',') || !(fabsf(bias->bias) <= FM_LOGIT_BIAS_MAX))
			break;
		run->sampling.n_bias++;
		if (!*end)
			return 0;
		at = end + 1;
	}
	return fm_fail(
		FM_ERR_INVALID,
		"--logit-bias %s: give ID:BIAS pairs such as 11:-100,42:2.5, each bias from %g "
		"to %g",
		text, -(double)FM_LOGIT_BIAS_MAX, (double)FM_LOGIT_BIAS_MAX);
}

static int parse_stop_tokens(struct run *run, const char *text)
{
	int err = parse_ids("--stop-token-ids", text, &run->stop_tokens);

	if (!err && run->stop_tokens.n > FM_STOP_TOKENS_MAX)
		err = fm_fail(FM_ERR_LIMIT,
			      "--stop-token-ids %.150s: %zu ids, there may be at most %d", text,
			      run->stop_tokens.n, FM_STOP_TOKENS_MAX);
	run->sampling.ends = run->stop_tokens.ids;
	run->sampling.n_ends = (uint32_t)run->stop_tokens.n;
	return err;
}

static void show(struct run *run, const char *text, size_t len)
{
	char *grown;

	if (!run->json) {
		/* Who does not take the text any more needs no more of it. */
		if (fwrite(text, 1, len, stdout) != len || fflush(stdout))
			run->error = fm_fail(FM_ERR_IO, "standard output could not be written: %s",
					     strerror(errno));
		return;
	}
	grown = realloc(run->text, run->text_len + len + 1);
	if (!grown) {
		run->error = fm_fail(FM_ERR_NO_MEMORY, "answer: out of memory");
		return;
	}
	memcpy(grown + run->text_len, text, len);
	run->text = grown;
	run->text_len += len;
	run->text[run->text_len] = 0;
}

static void add_step(struct run *run, const struct fm_sample *sample)
{
	json_t *top = json_array();

	for (uint32_t i = 0; i < sample->n_top; i++)
		json_array_append_new(top, json_pack("[i,f]", (int)sample->top[i].id,
						     (double)sample->top[i].logprob));
	json_array_append_new(run->steps,
			      json_pack("{s:i,s:f,s:o}", "token", (int)sample->token, "logprob",
					(double)sample->logprob, "top", top));
}

static int on_event(void *context, void *owner, const struct fm_engine_event *event)
{
	struct run *run = context;
	const char *text;
	size_t len;
	int met;

	(void)owner;
	if (event->kind == FM_EVENT_ERROR) {
		run->error = event->error;
		fm_fail(event->error, "%s", event->message);
	} else if (event->kind == FM_EVENT_DONE) {
		run->finish = event->finish;
	} else if (event->kind == FM_EVENT_TOKEN && !run->finish) {
		json_array_append_new(run->out_tokens, json_integer(event->sample->token));
		if (run->has_logprobs)
			add_step(run, event->sample);
		fm_progress_end();
		met = fm_text_stream_push(run->stream, event->sample->token, &text, &len);
		if (met < 0)
			run->error = met;
		else
			show(run, text, len);
		if (met > 0)
			run->finish = "stop";
	}
	return 0;
}

static int load(struct run *run)
{
	struct fm_attach_options attach = {
		.size = sizeof(attach), .fd = -1, .socket = run->flags.pool_socket, .name = "run"};
	struct fm_engine_options options;
	int err;

	fm_progress("loading %s …", run->flags.model);
	err = fm_tokenizer_open(run->flags.model, &run->tokenizer);
	if (!err)
		err = fm_model_open(run->flags.model, &run->flags.model_options, &run->model);
	if (!err && !run->flags.pool_socket) {
		err = fm_embedded_pool_start(run->flags.pool_bytes, &run->pool);
		if (!err)
			err = fm_embedded_pool_connect(run->pool, &attach.fd);
	}
	if (err)
		return err;
	options = (struct fm_engine_options){
		.model = run->model,
		.tokenizer = run->tokenizer,
		.attach = attach,
		.max_batch = 1,
		.token_budget = run->flags.chunk,
		.logits_log = run->flags.logits_log,
	};
	err = fm_engine_create(&options, on_event, run, &run->engine);
	return err ? err
		   : fm_text_stream_create(run->tokenizer, run->stops, run->n_stops, &run->stream);
}

static int encode_input(struct run *run)
{
	struct fm_chat_message message = {.role = "user", .content = run->prompt};
	struct fm_chat_template *chat;
	int err;

	if (!run->prompt)
		return 0; /* --tokens gave it */
	if (!run->chat)
		return fm_tokenizer_encode(run->tokenizer, run->prompt, strlen(run->prompt), true,
					   true, &run->input);
	err = fm_chat_template_create(fm_model_gguf(run->model), &chat);
	if (err)
		return err;
	err = fm_chat_template_encode(chat, run->tokenizer, &message, 1, &run->input);
	fm_chat_template_destroy(chat);
	return err;
}

static int print_json(struct run *run)
{
	json_t *prompt = json_array();
	json_t *out;

	for (size_t i = 0; i < run->input.n; i++)
		json_array_append_new(prompt, json_integer(run->input.ids[i]));
	/* With its length: a model may say the byte 0. */
	out = json_pack("{s:o,s:O,s:s%,s:s}", "prompt_tokens", prompt, "tokens", run->out_tokens,
			"text", run->text ? run->text : "", run->text_len, "finish_reason",
			run->finish);
	if (run->has_logprobs)
		json_object_set(out, "steps", run->steps);
	return fm_json_print(out, JSON_COMPACT | JSON_REAL_PRECISION(9));
}

/* Until the first token of the answer. */
static void show_progress(struct run *run)
{
	struct fm_engine_stats stats;

	fm_engine_stats(run->engine, &stats);
	if (!stats.generated_tokens)
		fm_progress("prompt: %llu of %zu tokens computed",
			    (unsigned long long)stats.computed_tokens, run->input.n);
}

static int generate(struct run *run)
{
	struct fm_request request = {.kind = FM_REQUEST_GENERATE, .id = 1};
	const char *text;
	size_t len;
	int err = load(run);

	if (!err)
		err = encode_input(run);
	if (err)
		return err;
	request.tokens = run->input.ids;
	request.n_prompt = request.n_tokens = (uint32_t)run->input.n;
	request.max_tokens = run->teacher.n ? (uint32_t)run->teacher.n : run->max_tokens;
	request.ends = !run->ignore_end;
	request.sampling = run->sampling;
	request.n_top = run->n_top;
	request.teacher = run->teacher.ids;
	request.n_teacher = (uint32_t)run->teacher.n;
	err = fm_engine_submit(run->engine, &request);
	while (!err && !run->finish && !run->error && fm_engine_step(run->engine))
		show_progress(run);
	if (err || run->error)
		return err ? err : run->error;
	err = fm_text_stream_finish(run->stream, &text, &len);
	if (err)
		return err;
	show(run, text, len);
	if (run->json)
		return print_json(run);
	putchar('\n');
	return 0;
}

enum {
	OPT_CHAT = 1000,
	OPT_TOKENS,
	OPT_TEACHER,
	OPT_TEMPERATURE,
	OPT_TOP_K,
	OPT_TOP_P,
	OPT_MIN_P,
	OPT_REPETITION,
	OPT_FREQUENCY,
	OPT_PRESENCE,
	OPT_BIAS,
	OPT_MIN_TOKENS,
	OPT_STOP_TOKENS,
	OPT_SEED,
	OPT_STOP,
	OPT_IGNORE_END,
	OPT_JSON,
	OPT_LOGPROBS
};

static int take_sampling(struct run *run, int option, const char *value)
{
	struct fm_sampling *sampling = &run->sampling;
	uint64_t number = 0;
	int err = 0;

	switch (option) {
	case OPT_TEMPERATURE:
		return fm_parse_float("--temperature", value, 0, (double)FM_TEMPERATURE_MAX,
				      &sampling->temperature);
	case OPT_TOP_P:
		return fm_parse_float("--top-p", value, 0, 1, &sampling->top_p);
	case OPT_MIN_P:
		return fm_parse_float("--min-p", value, 0, 1, &sampling->min_p);
	case OPT_REPETITION:
		return fm_parse_float(
			"--repetition-penalty", value, (double)FM_REPETITION_PENALTY_MIN,
			(double)FM_REPETITION_PENALTY_MAX, &sampling->repetition_penalty);
	case OPT_FREQUENCY:
		return fm_parse_float("--frequency-penalty", value, -(double)FM_PENALTY_MAX,
				      (double)FM_PENALTY_MAX, &sampling->frequency_penalty);
	case OPT_PRESENCE:
		return fm_parse_float("--presence-penalty", value, -(double)FM_PENALTY_MAX,
				      (double)FM_PENALTY_MAX, &sampling->presence_penalty);
	case OPT_BIAS:
		return parse_bias(run, value);
	case OPT_STOP_TOKENS:
		return parse_stop_tokens(run, value);
	case OPT_MIN_TOKENS:
		err = fm_parse_u64("--min-tokens", value, 0, 1u << 20, &number);
		sampling->min_tokens = (uint32_t)number;
		return err;
	case OPT_TOP_K:
		err = fm_parse_u64("--top-k", value, 0, UINT32_MAX, &number);
		sampling->top_k = (uint32_t)number;
		return err;
	case OPT_SEED:
		return fm_parse_u64("--seed", value, 0, UINT64_MAX, &sampling->seed);
	default:
		return fm_fail(FM_ERR_INVALID, "unknown option");
	}
}

static int take_option(struct run *run, int option, const char *value)
{
	uint64_t number = 0;
	int err = 0;

	switch (option) {
	case 'p':
		if (run->prompt)
			return fm_fail(FM_ERR_INVALID, "-p is given twice: give one prompt");
		run->prompt = value;
		break;
	case OPT_CHAT:
		run->chat = true;
		break;
	case OPT_TOKENS:
		return parse_ids("--tokens", value, &run->input);
	case OPT_TEACHER:
		return parse_ids("--teacher", value, &run->teacher);
	case OPT_IGNORE_END:
		run->ignore_end = true;
		break;
	case OPT_JSON:
		run->json = true;
		break;
	case OPT_LOGPROBS:
		err = fm_parse_u64("--logprobs", value, 0, FM_TOP_LOGPROBS_MAX, &number);
		run->n_top = (uint32_t)number;
		run->has_logprobs = true;
		break;
	case 'n':
		err = fm_parse_u64("--max-tokens", value, 1, 1u << 20, &number);
		run->max_tokens = (uint32_t)number;
		break;
	case OPT_STOP:
		if (run->n_stops == FM_STOP_STRINGS_MAX)
			return fm_fail(FM_ERR_LIMIT, "--stop: at most %d", FM_STOP_STRINGS_MAX);
		run->stops[run->n_stops++] = value;
		break;
	default:
		return take_sampling(run, option, value);
	}
	return err;
}

static const struct option long_options[] = {
	FM_ENGINE_LONG_OPTIONS,
	{"prompt", required_argument, NULL, 'p'},
	{"max-tokens", required_argument, NULL, 'n'},
	{"chat", no_argument, NULL, OPT_CHAT},
	{"tokens", required_argument, NULL, OPT_TOKENS},
	{"teacher", required_argument, NULL, OPT_TEACHER},
	{"temperature", required_argument, NULL, OPT_TEMPERATURE},
	{"top-k", required_argument, NULL, OPT_TOP_K},
	{"top-p", required_argument, NULL, OPT_TOP_P},
	{"min-p", required_argument, NULL, OPT_MIN_P},
	{"repetition-penalty", required_argument, NULL, OPT_REPETITION},
	{"frequency-penalty", required_argument, NULL, OPT_FREQUENCY},
	{"presence-penalty", required_argument, NULL, OPT_PRESENCE},
	{"logit-bias", required_argument, NULL, OPT_BIAS},
	{"min-tokens", required_argument, NULL, OPT_MIN_TOKENS},
	{"stop-token-ids", required_argument, NULL, OPT_STOP_TOKENS},
	{"seed", required_argument, NULL, OPT_SEED},
	{"stop", required_argument, NULL, OPT_STOP},
	{"ignore-end", no_argument, NULL, OPT_IGNORE_END},
	{"json", no_argument, NULL, OPT_JSON},
	{"logprobs", required_argument, NULL, OPT_LOGPROBS},
	{0}};

static int take(void *arg, int flag, const char *value)
{
	struct run *run = arg;
	int taken = fm_engine_flags_take(&run->flags, flag, value);

	return taken < 0 ? taken : taken ? 0 : take_option(run, flag, value);
}

static int check(struct run *run, int argc, char **argv)
{
	int err = fm_engine_flags_finish(&run->flags, argc, argv);

	if (!err && !run->prompt == !run->input.n)
		err = fm_fail(FM_ERR_INVALID, "give one prompt: -p TEXT or --tokens IDS");
	if (!err && run->chat && !run->prompt)
		err = fm_fail(FM_ERR_INVALID, "--chat needs -p TEXT");
	if (!err && !run->json && (run->has_logprobs || run->teacher.n))
		err = fm_fail(FM_ERR_INVALID, "%s shows what it found in JSON only: add --json",
			      run->has_logprobs ? "--logprobs" : "--teacher");
	if (!err && run->sampling.min_tokens > run->max_tokens)
		err = fm_fail(FM_ERR_INVALID, "--min-tokens %u: give at most --max-tokens (%u)",
			      run->sampling.min_tokens, run->max_tokens);
	run->sampling.bias = run->bias;
	return err;
}

static void clean_up(struct run *run)
{
	fm_text_stream_destroy(run->stream);
	fm_engine_destroy(run->engine);
	fm_embedded_pool_stop(run->pool);
	fm_tokenizer_destroy(run->tokenizer);
	fm_model_close(run->model);
	fm_tokens_free(&run->input);
	fm_tokens_free(&run->teacher);
	fm_tokens_free(&run->stop_tokens);
	json_decref(run->out_tokens);
	json_decref(run->steps);
	free(run->text);
}

int fm_run_main(int argc, char **argv)
{
	static const struct fm_command command = {"fabric-engine run", ":m:t:p:n:h", long_options,
						  help, take};
	struct run run = {.max_tokens = 128, .sampling = FM_SAMPLING_NEUTRAL};
	int status, err = 0;

	fm_engine_flags_init(&run.flags);
	status = fm_command_parse(&command, argc, argv, &run);
	if (status == FM_COMMAND_GO && check(&run, argc, argv))
		status = fm_usage_error(command.name);
	if (status == FM_COMMAND_GO) {
		run.out_tokens = json_array();
		run.steps = json_array();
		err = generate(&run);
		fm_progress_end();
		status = err ? FM_EXIT_FAILED : 0;
	}
	if (err)
		fprintf(stderr, "fabric-engine run: %s\n", fm_error_detail());
	clean_up(&run);
	return status;
}
