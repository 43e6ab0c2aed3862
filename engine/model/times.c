/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the time of forward passes goes, by operation. Called by the steps and by model.c; a model
 * that was not opened for it reads no clock. Invariant: the laps of a pass add up to its time.
 */
#include <string.h>
#include <time.h>

#include "model/state.h"

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

void fm_lap_start(struct fm_model *model)
{
	if (model->options.is_timed)
		model->lap = now_ns();
}

void fm_lap(struct fm_model *model, enum fm_operation operation)
{
	uint64_t now;

	if (!model->options.is_timed)
		return;
	now = now_ns();
	model->times[operation] += now - model->lap;
	model->lap = now;
}

void fm_model_times(const struct fm_model *model, uint64_t *out)
{
	memcpy(out, model->times, sizeof(model->times));
}

const char *fm_operation_name(enum fm_operation operation)
{
	static const char *const names[] = {
		[FM_OPERATION_EMBED] = "embedding",
		[FM_OPERATION_NORM] = "norms",
		[FM_OPERATION_QKV] = "q, k, v",
		[FM_OPERATION_ROPE_STORE] = "rope and KV",
		[FM_OPERATION_ATTENTION] = "attention",
		[FM_OPERATION_ATTENTION_OUTPUT] = "attention output",
		[FM_OPERATION_GATE_UP] = "gate, up",
		[FM_OPERATION_GATE] = "gate function",
		[FM_OPERATION_DOWN] = "down",
		[FM_OPERATION_LOGITS] = "logits",
	};

	return names[operation];
}

bool fm_operation_is_product(enum fm_operation operation)
{
	return operation == FM_OPERATION_QKV || operation == FM_OPERATION_ATTENTION_OUTPUT ||
	       operation == FM_OPERATION_GATE_UP || operation == FM_OPERATION_DOWN;
}
