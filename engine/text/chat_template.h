/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages to prompt tokens, by the chat template that stands in the model file. Only the role
 * markers are parsed as control tokens; message contents never are.
 */
#ifndef FM_ENGINE_CHAT_TEMPLATE_H
#define FM_ENGINE_CHAT_TEMPLATE_H

#include "text/tokenizer.h"

struct fm_chat_template;

struct fm_chat_message {
	const char *role;    /* "system", "user", "assistant" */
	const char *content; /* UTF-8, terminated */
};

/* Recognises the template family in @file (ChatML, with the file's own default system message, or
 * Gemma's); FM_ERR_UNSUPPORTED when the file has none or one of another family. */
int fm_chat_template_create(const struct gguf *file, struct fm_chat_template **out);
void fm_chat_template_destroy(struct fm_chat_template *chat);
const char *fm_chat_template_name(const struct fm_chat_template *chat); /* of the family */

/* Encodes a conversation, ending where the assistant's answer begins. */
int fm_chat_template_encode(const struct fm_chat_template *chat,
			    const struct fm_tokenizer *tokenizer,
			    const struct fm_chat_message *messages, size_t n,
			    struct fm_tokens *out);

#endif
