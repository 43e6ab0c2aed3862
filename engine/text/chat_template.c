// SPDX-License-Identifier: Apache-2.0
/*
 * Prompts of conversations, in ChatML and in Gemma's form. The HTTP side calls it; it calls the
 * tokenizer. A template is recognised by the texts that stand in it, never executed. Invariant:
 * only the two markers are parsed as control tokens; whatever a message holds is encoded as plain
 * text.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "model/gguf.h"
#include "text/chat_template.h"

#define MESSAGES_MAX	   4096
#define TEMPLATE_BYTES_MAX (1u << 20) /* the longest known has 20 KiB */

/* A message is <start>role\ntext<end>\n in all of them. */
struct family {
	const char *name;
	const char *start, *end;
	const char *assistant;	 /* the role's name */
	const char *answer_head; /* what shows that a template is of this family */
	bool has_system;	 /* else it stands before the first message of the user */
	bool is_trimmed;	 /* a message's text loses blanks at both ends */
};

static const struct family families[] = {
	{"ChatML", "<|im_start|>", "<|im_end|>", "assistant", "<|im_start|>assistant", true, false},
	{"Gemma", "<start_of_turn>", "<end_of_turn>", "model", "<start_of_turn>model", false, true},
};

enum { FAMILIES = sizeof(families) / sizeof(families[0]) };

#define SYSTEM_HEAD "<|im_start|>system\n"
#define SYSTEM_END  "<|im_end|>"

struct fm_chat_template {
	const struct family *family;
	char *default_system; /* NULL: none is added */
};

/* What was found while the template's texts went by. */
struct scan {
	bool has_start[FAMILIES], has_end[FAMILIES], has_answer[FAMILIES];
	char *default_system;
	bool is_out_of_memory;
};

struct builder {
	const struct fm_tokenizer *tokenizer;
	char *text; /* plain text since the last marker */
	size_t len, capacity;
	struct fm_tokens tokens;
	size_t token_capacity;
};

/* ---- recognising
 * --------------------------------------------------------------------------------- */

static bool has(const char *text, size_t len, const char *wanted)
{
	return memmem(text, len, wanted, strlen(wanted)) != NULL;
}

/* One text of the template: a string literal, its escapes resolved, or text outside of the blocks.
 */
static void scan_text(struct scan *scan, const char *text, size_t len)
{
	const char *system, *end;

	for (int i = 0; i < FAMILIES; i++) {
		scan->has_start[i] |= has(text, len, families[i].start);
		scan->has_end[i] |= has(text, len, families[i].end);
		scan->has_answer[i] |= has(text, len, families[i].answer_head);
	}
	/* A whole system message in one text is the one that stands in for a missing one. */
	system = memmem(text, len, SYSTEM_HEAD, strlen(SYSTEM_HEAD));
	if (!system || scan->default_system)
		return;
	system += strlen(SYSTEM_HEAD);
	end = memmem(system, text + len - system, SYSTEM_END, strlen(SYSTEM_END));
	if (!end)
		return;
	scan->default_system = strndup(system, end - system);
	scan->is_out_of_memory |= !scan->default_system;
}

/* A literal from its opening quote on; @buffer takes its text. Returns what follows it. */
static const char *scan_literal(struct scan *scan, const char *at, const char *end, char *buffer)
{
	char quote = *at++;
	size_t len = 0;

	for (; at < end && *at != quote; at++) {
		char character = *at;

		if (character == '\\' && at + 1 < end) {
			character = *++at;
			character = character == 'n' ? '\n' : character == 't' ? '\t' : character;
		}
		buffer[len++] = character;
	}
	scan_text(scan, buffer, len);
	return at < end ? at + 1 : end;
}

/* The inside of {{ }} or {% %}: only its literals matter. Returns what follows the block. */
static const char *scan_block(struct scan *scan, const char *at, const char *end, char *buffer)
{
	char close = at[1] == '{' ? '}' : '%';

	at += 2;
	while (at < end) {
		if (*at == '\'' || *at == '"') {
			at = scan_literal(scan, at, end, buffer);
			continue;
		}
		if (*at == close && at + 1 < end && at[1] == '}')
			return at + 2;
		at++;
	}
	return end;
}

static void scan_template(struct scan *scan, const char *at, const char *end, char *buffer)
{
	while (at < end) {
		const char *text = at;

		while (at < end && !(*at == '{' && at + 1 < end && strchr("{%#", at[1]) && at[1]))
			at++;
		scan_text(scan, text, at - text);
		if (at == end)
			return;
		if (at[1] != '#') {
			at = scan_block(scan, at, end, buffer);
			continue;
		}
		text = memmem(at, end - at, "#}", 2);
		at = text ? text + 2 : end;
	}
}

int fm_chat_template_create(const struct gguf *file, struct fm_chat_template **out)
{
	struct gguf_string template;
	struct scan scan = {0};
	char *buffer;

	*out = NULL;
	if (!gguf_get_string(file, "tokenizer.chat_template", &template))
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: has no chat template "
			       "(tokenizer.chat_template); use completions, or an instruct model",
			       gguf_path(file));
	if (template.len > TEMPLATE_BYTES_MAX)
		return fm_fail(FM_ERR_LIMIT,
			       "%s: its chat template has %zu bytes, at most %u are "
			       "supported",
			       gguf_path(file), template.len, TEMPLATE_BYTES_MAX);
	buffer = malloc(template.len + 1);
	*out = calloc(1, sizeof(**out));
	if (buffer && *out)
		scan_template(&scan, template.data, template.data + template.len, buffer);
	if (!buffer || !*out || scan.is_out_of_memory) {
		free(buffer);
		free(scan.default_system);
		free(*out);
		*out = NULL;
		return fm_fail(FM_ERR_NO_MEMORY, "%s: no memory for its chat template",
			       gguf_path(file));
	}
	free(buffer);
	(*out)->default_system = scan.default_system;
	for (int i = 0; i < FAMILIES; i++) {
		(*out)->family = &families[i];
		if (scan.has_start[i] && scan.has_end[i] && scan.has_answer[i])
			return 0;
	}
	fm_chat_template_destroy(*out);
	*out = NULL;
	return fm_fail(FM_ERR_UNSUPPORTED,
		       "%s: its chat template is neither ChatML (<|im_start|>role ... <|im_end|>) "
		       "nor Gemma's (<start_of_turn>role ... <end_of_turn>); use completions",
		       gguf_path(file));
}

void fm_chat_template_destroy(struct fm_chat_template *chat)
{
	if (!chat)
		return;
	free(chat->default_system);
	free(chat);
}

const char *fm_chat_template_name(const struct fm_chat_template *chat)
{
	return chat->family->name;
}

/* ---- encoding
 * ------------------------------------------------------------------------------------ */

static int add_bytes(struct builder *builder, const char *text, size_t n)
{
	if (builder->len + n > builder->capacity) {
		size_t capacity = 2 * (builder->len + n);
		char *grown = realloc(builder->text, capacity);

		if (!grown)
			return fm_fail(FM_ERR_NO_MEMORY,
				       "no memory for a conversation of %zu bytes",
				       builder->len + n);
		builder->text = grown;
		builder->capacity = capacity;
	}
	if (n)
		memcpy(builder->text + builder->len, text, n);
	builder->len += n;
	return 0;
}

static int add_text(struct builder *builder, const char *text)
{
	return add_bytes(builder, text, strlen(text));
}

static int add_trimmed(struct builder *builder, const char *text)
{
	size_t n = strlen(text);

	while (n && isspace((unsigned char)*text)) {
		text++;
		n--;
	}
	while (n && isspace((unsigned char)text[n - 1]))
		n--;
	return add_bytes(builder, text, n);
}

static int append(struct builder *builder, const uint32_t *ids, size_t n)
{
	if (builder->tokens.n + n > builder->token_capacity) {
		size_t capacity = 2 * (builder->tokens.n + n);
		uint32_t *grown = realloc(builder->tokens.ids, capacity * sizeof(*grown));

		if (!grown)
			return fm_fail(FM_ERR_NO_MEMORY, "no memory for a prompt of %zu tokens",
				       capacity);
		builder->tokens.ids = grown;
		builder->token_capacity = capacity;
	}
	if (n)
		memcpy(builder->tokens.ids + builder->tokens.n, ids, n * sizeof(*ids));
	builder->tokens.n += n;
	return 0;
}

/* Everything between two markers is encoded as one text, as it would be in the rendered prompt. */
static int flush_text(struct builder *builder, bool add_bos)
{
	struct fm_tokens part;
	int err = fm_tokenizer_encode(builder->tokenizer, builder->text ? builder->text : "",
				      builder->len, false, add_bos, &part);

	builder->len = 0;
	if (err)
		return err;
	err = append(builder, part.ids, part.n);
	fm_tokens_free(&part);
	return err;
}

static int add_marker(struct builder *builder, const char *marker)
{
	struct fm_tokens part;
	int err = flush_text(builder, false);

	if (!err)
		err = fm_tokenizer_encode(builder->tokenizer, marker, strlen(marker), true, false,
					  &part);
	if (err)
		return err;
	if (part.n == 1 && fm_tokenizer_is_control(builder->tokenizer, part.ids[0]))
		err = append(builder, part.ids, 1);
	else
		err = fm_fail(FM_ERR_UNSUPPORTED,
			      "the model's vocabulary has no control token %s, "
			      "which its chat template uses",
			      marker);
	fm_tokens_free(&part);
	return err;
}

/* @before: NULL, or a text that goes before the content. */
static int add_message(struct builder *builder, const struct family *family, const char *role,
		       const char *before, const char *content)
{
	int err = add_marker(builder, family->start);

	if (!err)
		err = add_text(builder, strcmp(role, "assistant") ? role : family->assistant);
	if (!err)
		err = add_text(builder, "\n");
	if (!err && before)
		err = add_text(builder, before);
	if (!err && before)
		err = add_text(builder, "\n\n");
	if (!err)
		err = family->is_trimmed ? add_trimmed(builder, content)
					 : add_text(builder, content);
	if (!err)
		err = add_marker(builder, family->end);
	return err ? err : add_text(builder, "\n");
}

static int check_messages(const struct fm_chat_message *messages, size_t n)
{
	if (n == 0)
		return fm_fail(FM_ERR_INVALID, "the conversation has no messages");
	if (n > MESSAGES_MAX)
		return fm_fail(FM_ERR_LIMIT,
			       "the conversation has %zu messages, at most %d are "
			       "supported",
			       n, MESSAGES_MAX);
	for (size_t i = 0; i < n; i++) {
		const char *role = messages[i].role;

		if (!role || (strcmp(role, "system") != 0 && strcmp(role, "user") != 0 &&
			      strcmp(role, "assistant") != 0))
			return fm_fail(FM_ERR_INVALID,
				       "message %zu has role \"%.32s\"; allowed are "
				       "system, user and assistant",
				       i, role ? role : "");
		if (!messages[i].content)
			return fm_fail(FM_ERR_INVALID, "message %zu has no content", i);
	}
	return 0;
}

/* Where the family has no system messages, a user and the assistant take turns. */
static int check_turns(const struct fm_chat_message *messages, size_t n)
{
	if (n == 0)
		return fm_fail(FM_ERR_INVALID, "the conversation has no message of the user");
	for (size_t i = 0; i < n; i++)
		if (strcmp(messages[i].role, i % 2 ? "assistant" : "user") != 0)
			return fm_fail(FM_ERR_INVALID,
				       "message %zu after the system's has role \"%s\"; with this "
				       "model user and assistant take turns, the user first",
				       i, messages[i].role);
	return 0;
}

static int add_messages(struct builder *builder, const struct fm_chat_template *chat,
			const struct fm_chat_message *messages, size_t n)
{
	const struct family *family = chat->family;
	const char *before = NULL;
	int err = 0;

	if (!family->has_system) {
		if (strcmp(messages[0].role, "system") == 0) {
			before = messages[0].content;
			messages++;
			n--;
		}
		err = check_turns(messages, n);
	} else if (chat->default_system && strcmp(messages[0].role, "system") != 0) {
		err = add_message(builder, family, "system", NULL, chat->default_system);
	}
	for (size_t i = 0; i < n && !err; i++)
		err = add_message(builder, family, messages[i].role, i ? NULL : before,
				  messages[i].content);
	return err;
}

int fm_chat_template_encode(const struct fm_chat_template *chat,
			    const struct fm_tokenizer *tokenizer,
			    const struct fm_chat_message *messages, size_t n, struct fm_tokens *out)
{
	struct builder builder = {.tokenizer = tokenizer};
	int err;

	*out = (struct fm_tokens){0};
	err = check_messages(messages, n);
	if (err)
		return err;
	err = flush_text(&builder, true);
	if (!err)
		err = add_messages(&builder, chat, messages, n);
	if (!err)
		err = add_marker(&builder, chat->family->start);
	if (!err)
		err = add_text(&builder, chat->family->assistant);
	if (!err)
		err = add_text(&builder, "\n");
	if (!err)
		err = flush_text(&builder, false);
	free(builder.text);
	if (err)
		fm_tokens_free(&builder.tokens);
	else
		*out = builder.tokens;
	return err;
}
