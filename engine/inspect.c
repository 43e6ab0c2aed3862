// SPDX-License-Identifier: Apache-2.0
/*
 * `fabric-engine inspect MODEL`: the file's metadata as a table or as JSON. Everything is put into
 * one JSON object first and the table is printed from that, so both always say the same. Invariant:
 * text from the file reaches the terminal only as printable characters.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include <fabricmgr.h>

#include "command_line.h"
#include "inspect.h"
#include "json_memory.h"
#include "model/gguf.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#define N_TYPES 64 /* above every enum ggml_type */

static const char help[] = "usage: fabric-engine inspect [--json] [--tensors] MODEL\n"
			   "\n"
			   "Shows what is in a GGUF file: architecture, sizes, tensor types, "
			   "tokenizer, chat template.\n"
			   "\n"
			   "  --json     one JSON object on standard output\n"
			   "  --tensors  every tensor too: name, type, shape, offset, bytes\n"
			   "  -h, --help; --version\n"
			   "\n"
			   "Exit status: 0, 1 when the file cannot be read or is damaged, 2 for a "
			   "wrong command line.\n";

/* Metadata of the architecture that is shown: the key's end and the name in the report. */
static const struct {
	const char *key, *name, *label;
} sizes[] = {
	{"context_length", "context_length", "context"},
	{"block_count", "layers", "layers"},
	{"embedding_length", "embedding", "embedding"},
	{"feed_forward_length", "feed_forward", "feed forward"},
	{"attention.head_count", "heads", "heads"},
	{"attention.head_count_kv", "kv_heads", "KV heads"},
	{"rope.dimension_count", "rope_dimensions", "RoPE dims"},
	{"expert_count", "experts", "experts"},
	{"expert_used_count", "experts_used", "experts used"},
	{"attention.sliding_window", "sliding_window", "window"},
};

#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* ---- collecting --------------------------------------------------------------------------------
 */

/* A string of the file as valid UTF-8 without control characters. */
static json_t *clean_string(struct gguf_string text)
{
	char buffer[256];
	size_t n = 0;

	for (size_t at = 0; at < text.len && n + 4 < sizeof(buffer);) {
		int step = fm_utf8_step(text.data + at, text.len - at);
		uint8_t first = text.data[at];

		if (step <= 0 || first < ' ' || first == 0x7f ||
		    (first == 0xc2 && (uint8_t)text.data[at + 1] < 0xa0)) {
			buffer[n++] = '?';
			at += step > 0 ? step : step < 0 ? -step : 1;
			continue;
		}
		memcpy(buffer + n, text.data + at, step);
		n += step;
		at += step;
	}
	return json_stringn(buffer, n);
}

static json_t *string_of_key(const struct gguf *file, const char *key)
{
	struct gguf_string text;

	return gguf_get_string(file, key, &text) ? clean_string(text) : json_null();
}

static uint64_t elements(const struct gguf_tensor *tensor)
{
	/* Their product was checked when the file was opened. */
	return tensor->dims[0] * tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
}

static json_t *collect_sizes(const struct gguf *file)
{
	json_t *out = json_object();
	struct gguf_string arch;
	char key[160];

	if (!gguf_get_string(file, "general.architecture", &arch) || arch.len > 64)
		return out;
	for (size_t i = 0; i < N_SIZES; i++) {
		uint32_t value;

		snprintf(key, sizeof(key), "%.*s.%s", (int)arch.len, arch.data, sizes[i].key);
		if (gguf_get_u32(file, key, &value))
			json_object_set_new(out, sizes[i].name, json_integer(value));
	}
	return out;
}

static json_t *collect_types(const struct gguf *file, uint64_t *n_parameters, uint64_t *n_bytes)
{
	uint64_t count[N_TYPES] = {0}, bytes[N_TYPES] = {0}, parameters[N_TYPES] = {0};
	json_t *out = json_array();

	*n_parameters = *n_bytes = 0;
	for (size_t i = 0; i < gguf_n_tensors(file); i++) {
		const struct gguf_tensor *tensor = gguf_tensor_at(file, i);

		count[tensor->type]++;
		bytes[tensor->type] += tensor->n_bytes;
		parameters[tensor->type] += elements(tensor);
		*n_parameters += elements(tensor);
		*n_bytes += tensor->n_bytes;
	}
	for (int type = 0; type < N_TYPES; type++) {
		if (count[type])
			json_array_append_new(out, json_pack("{s:s, s:I, s:I, s:I}", "type",
							     gguf_type_name(type), "tensors",
							     (json_int_t)count[type], "parameters",
							     (json_int_t)parameters[type], "bytes",
							     (json_int_t)bytes[type]));
	}
	return out;
}

static json_t *collect_tensors(const struct gguf *file)
{
	json_t *out = json_array();

	for (size_t i = 0; i < gguf_n_tensors(file); i++) {
		const struct gguf_tensor *tensor = gguf_tensor_at(file, i);
		json_t *shape = json_array();

		for (uint32_t d = 0; d < tensor->n_dims; d++)
			json_array_append_new(shape, json_integer((json_int_t)tensor->dims[d]));
		json_array_append_new(out, json_pack("{s:o, s:s, s:o, s:I, s:I}", "name",
						     clean_string(tensor->name), "type",
						     gguf_type_name(tensor->type), "shape", shape,
						     "offset", (json_int_t)tensor->file_offset,
						     "bytes", (json_int_t)tensor->n_bytes));
	}
	return out;
}

/* Whether this build can use the tokenizer and the template is found by creating them. */
static void collect_text(const struct gguf *file, json_t *out)
{
	struct fm_tokenizer *tokenizer;
	struct fm_chat_template *chat;
	struct gguf_string text;
	enum gguf_type type;
	json_t *about = json_object();
	bool has_template = gguf_get_string(file, "tokenizer.chat_template", &text);
	size_t n;
	int err;

	json_object_set_new(about, "model", string_of_key(file, "tokenizer.ggml.model"));
	json_object_set_new(about, "pre", string_of_key(file, "tokenizer.ggml.pre"));
	if (gguf_get_array(file, "tokenizer.ggml.tokens", &type, &n))
		json_object_set_new(about, "tokens", json_integer((json_int_t)n));
	err = fm_tokenizer_create(file, &tokenizer);
	if (err == FM_ERR_NO_MEMORY)
		fm_json_be_short(); /* that says nothing about the file */
	if (!err) {
		json_object_set_new(about, "supported", json_true());
		fm_tokenizer_destroy(tokenizer);
	} else {
		json_object_set_new(about, "supported", json_false());
		json_object_set_new(about, "reason", json_string(fm_error_detail()));
	}
	json_object_set_new(out, "tokenizer", about);
	err = fm_chat_template_create(file, &chat);
	if (err == FM_ERR_NO_MEMORY)
		fm_json_be_short();
	if (!err) {
		json_object_set_new(out, "chat_template", json_string(fm_chat_template_name(chat)));
		fm_chat_template_destroy(chat);
	} else {
		json_object_set_new(out, "chat_template",
				    has_template ? json_string("unsupported") : json_null());
	}
}

static json_t *collect(const struct gguf *file, bool with_tensors)
{
	const char *path = gguf_path(file);
	struct gguf_string label = {path, strlen(path)};
	json_t *out = json_object();
	uint64_t n_parameters, n_bytes;
	json_t *types = collect_types(file, &n_parameters, &n_bytes);

	json_object_set_new(out, "file", clean_string(label));
	json_object_set_new(out, "file_bytes", json_integer((json_int_t)gguf_file_size(file)));
	json_object_set_new(out, "architecture", string_of_key(file, "general.architecture"));
	json_object_set_new(out, "name", string_of_key(file, "general.name"));
	json_object_set_new(out, "license", string_of_key(file, "general.license"));
	json_object_set_new(out, "parameters", json_integer((json_int_t)n_parameters));
	json_object_set_new(out, "tensors", json_integer((json_int_t)gguf_n_tensors(file)));
	json_object_set_new(out, "tensor_bytes", json_integer((json_int_t)n_bytes));
	json_object_set_new(out, "sizes", collect_sizes(file));
	json_object_set_new(out, "types", types);
	collect_text(file, out);
	if (with_tensors)
		json_object_set_new(out, "tensor_list", collect_tensors(file));
	return out;
}

/* ---- printing ----------------------------------------------------------------------------------
 */

static const char *text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "none";
}

static double number_of(const json_t *object, const char *key)
{
	return (double)json_integer_value(json_object_get(object, key));
}

static void print_tensor_list(const json_t *list)
{
	json_t *tensor, *dim;
	size_t i, d;

	printf("\n%-40s %-6s %-24s %14s %14s\n", "tensor", "type", "shape", "offset", "bytes");
	json_array_foreach(list, i, tensor)
	{
		char shape[96] = "";
		size_t at = 0;

		json_array_foreach(json_object_get(tensor, "shape"), d, dim) at +=
			snprintf(shape + at, sizeof(shape) - at, "%s%" JSON_INTEGER_FORMAT,
				 d ? " x " : "", json_integer_value(dim));
		printf("%-40s %-6s %-24s %14" JSON_INTEGER_FORMAT " %14" JSON_INTEGER_FORMAT "\n",
		       text_of(tensor, "name"), text_of(tensor, "type"), shape,
		       json_integer_value(json_object_get(tensor, "offset")),
		       json_integer_value(json_object_get(tensor, "bytes")));
	}
}

static void print_table(const json_t *report)
{
	const json_t *tokenizer = json_object_get(report, "tokenizer");
	const json_t *type, *size;
	size_t i;

	printf("%-14s %s (%.1f MiB)\n", "file", text_of(report, "file"),
	       number_of(report, "file_bytes") / 1048576);
	printf("%-14s %s\n", "name", text_of(report, "name"));
	printf("%-14s %s\n", "architecture", text_of(report, "architecture"));
	printf("%-14s %s\n", "licence", text_of(report, "license"));
	printf("%-14s %.1f million\n", "parameters", number_of(report, "parameters") / 1e6);
	for (i = 0; i < N_SIZES; i++) {
		size = json_object_get(json_object_get(report, "sizes"), sizes[i].name);
		if (size)
			printf("%-14s %" JSON_INTEGER_FORMAT "\n", sizes[i].label,
			       json_integer_value(size));
	}
	printf("%-14s %s, pre-tokenizer %s, %.0f tokens%s%s%s\n", "tokenizer",
	       text_of(tokenizer, "model"), text_of(tokenizer, "pre"),
	       number_of(tokenizer, "tokens"),
	       json_object_get(tokenizer, "reason") ? " (not usable: " : "",
	       json_object_get(tokenizer, "reason") ? text_of(tokenizer, "reason") : "",
	       json_object_get(tokenizer, "reason") ? ")" : "");
	printf("%-14s %s\n", "chat template", text_of(report, "chat_template"));
	printf("%-14s %.0f, %.1f MiB\n", "tensors", number_of(report, "tensors"),
	       number_of(report, "tensor_bytes") / 1048576);
	json_array_foreach(json_object_get(report, "types"), i, type)
		printf("  %-12s %6.0f tensors %10.1f million parameters %10.1f MiB\n",
		       text_of(type, "type"), number_of(type, "tensors"),
		       number_of(type, "parameters") / 1e6, number_of(type, "bytes") / 1048576);
	if (json_object_get(report, "tensor_list"))
		print_tensor_list(json_object_get(report, "tensor_list"));
}

/* Takes over @report. */
static int print_report(json_t *report, bool as_json)
{
	if (as_json)
		return fm_json_print(report, JSON_INDENT(2));
	if (fm_json_was_short()) {
		json_decref(report);
		return fm_fail(FM_ERR_NO_MEMORY, "no memory for the report");
	}
	print_table(report);
	json_decref(report);
	return 0;
}

struct inspect {
	bool as_json, with_tensors;
};

static int take(void *arg, int flag, const char *value)
{
	struct inspect *inspect = arg;

	(void)value;
	if (flag == 'j')
		inspect->as_json = true;
	else
		inspect->with_tensors = true;
	return 0;
}

int fm_inspect_main(int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{"tensors", no_argument, NULL, 't'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{0},
	};
	static const struct fm_command command = {"fabric-engine inspect", ":h", options, help,
						  take};
	struct inspect inspect = {0};
	struct gguf *file;
	json_t *report;
	int status = fm_command_parse(&command, argc, argv, &inspect);

	if (status != FM_COMMAND_GO)
		return status;
	if (argc - optind != 1) {
		fm_fail(FM_ERR_INVALID, "%d model files were given: name one", argc - optind);
		return fm_usage_error(command.name);
	}
	if (gguf_open(argv[optind], &file) != 0) {
		fprintf(stderr, "fabric-engine inspect: %s\n", fm_error_detail());
		return FM_EXIT_FAILED;
	}
	report = collect(file, inspect.with_tensors);
	status = 0;
	if (print_report(report, inspect.as_json)) {
		fprintf(stderr, "fabric-engine inspect: %s\n", fm_error_detail());
		status = FM_EXIT_FAILED;
	}
	gguf_close(file);
	return status;
}
