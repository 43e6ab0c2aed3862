// SPDX-License-Identifier: Apache-2.0
/*
 * The shared flags of fabric-engine's subcommands (see options.h). Messages go to fm_fail(); the
 * subcommand prints them with its usage.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "options.h"

void fm_engine_flags_init(struct fm_engine_flags *flags)
{
	*flags = (struct fm_engine_flags){
		.model_options = {.precision = FM_PRECISION_Q16,
				  .kv_element = FM_ELEMENT_F16,
				  .tokens_per_block = 16},
		.pool_bytes = 1ull << 30,
		.max_batch = 16,
		.chunk = 256,
	};
}

int fm_parse_u64(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || value < min || value > max)
		return fm_fail(FM_ERR_INVALID, "%s %s: give a number from %llu to %llu", what, text,
			       (unsigned long long)min, (unsigned long long)max);
	*out = value;
	return 0;
}

int fm_parse_float(const char *what, const char *text, double min, double max, float *out)
{
	char *end;
	double value = strtod(text, &end);

	/* Written so that not-a-number fails. */
	if (end == text || *end || !(value >= min && value <= max))
		return fm_fail(FM_ERR_INVALID, "%s %s: give a number from %g to %g", what, text,
			       min, max);
	*out = (float)value;
	return 0;
}

int fm_parse_bytes(const char *what, const char *text, uint64_t *out)
{
	char *end;
	unsigned long long value;
	unsigned int shift = 0;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (*end == 'K' || *end == 'k')
		shift = 10;
	else if (*end == 'M' || *end == 'm')
		shift = 20;
	else if (*end == 'G' || *end == 'g')
		shift = 30;
	if (errno || end == text || *text == '-' || (shift ? end[1] : *end) ||
	    value > UINT64_MAX >> shift || !value)
		return fm_fail(FM_ERR_INVALID, "%s %s: give a size such as 512M or 4G", what, text);
	*out = (uint64_t)value << shift;
	return 0;
}

static int take_name(struct fm_engine_flags *flags, int option, const char *value)
{
	if (option == 'P' && !strcmp(value, "q8"))
		flags->model_options.precision = FM_PRECISION_Q8;
	else if (option == 'P' && !strcmp(value, "q16"))
		flags->model_options.precision = FM_PRECISION_Q16;
	else if (option == 'P' && !strcmp(value, "f32"))
		flags->model_options.precision = FM_PRECISION_F32;
	else if (option == 'K' && !strcmp(value, "f16"))
		flags->model_options.kv_element = FM_ELEMENT_F16;
	else if (option == 'K' && !strcmp(value, "f32"))
		flags->model_options.kv_element = FM_ELEMENT_F32;
	else
		return fm_fail(FM_ERR_INVALID, "--%s %s: give %s",
			       option == 'P' ? "precision" : "kv", value,
			       option == 'P' ? "q8, q16 or f32" : "f16 or f32");
	return 1;
}

int fm_engine_flags_take(struct fm_engine_flags *flags, int option, const char *value)
{
	uint64_t number = 0;
	int err = 0;

	switch (option) {
	case 'm':
		flags->model = value;
		return 1;
	case 'I':
		flags->model_options.isa = value;
		return 1;
	case 'L':
		flags->logits_log = value;
		return 1;
	case 'S':
		flags->pool_socket = value;
		return 1;
	case 'P':
	case 'K':
		return take_name(flags, option, value);
	case 't':
		err = fm_parse_u64("--threads", value, 1, 64, &number);
		flags->model_options.threads = (unsigned int)number;
		break;
	case 'C':
		err = fm_parse_u64("--chunk", value, 1, 65536, &number);
		flags->chunk = (uint32_t)number;
		break;
	case 'B':
		err = fm_parse_u64("--max-batch", value, 1, 256, &number);
		flags->max_batch = (uint32_t)number;
		break;
	case 'Z':
		err = fm_parse_bytes("--pool-size", value, &flags->pool_bytes);
		break;
	default:
		return 0;
	}
	return err ? err : 1;
}
