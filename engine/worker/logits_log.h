/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that proves what a request's logits were (--logits-log): one line for each token chosen,
 * "request position sha256 token". The digest is of the raw logits, vocab_size little-endian
 * float32, so equal lines mean equal bits. Called by the step loop; for tests and for hunting a
 * difference between machines: it names every token that was generated. Invariant: a line is
 * written by one write(), so processes may append to one file.
 */
#ifndef FM_ENGINE_LOGITS_LOG_H
#define FM_ENGINE_LOGITS_LOG_H

#include <stddef.h>
#include <stdint.h>

struct fm_logits_log;

/* Appends to @path, which is created with mode 0600. */
int fm_logits_log_open(const char *path, struct fm_logits_log **out);
void fm_logits_log_close(struct fm_logits_log *log);
/* @position: of the chosen @token. */
int fm_logits_log_add(struct fm_logits_log *log, uint64_t request, uint32_t position,
		      const float *logits, size_t vocab, uint32_t token);

#endif
