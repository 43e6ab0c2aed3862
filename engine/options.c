// SPDX-License-Identifier: Apache-2.0
/*
 * The shared flags of fabric-engine's subcommands (see options.h). Messages go to fm_fail(); the
 * subcommand prints them.
 */
#include <string.h>

#include <fabricmgr.h>

#include "kernels.h"
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

static int take_name(struct fm_engine_flags *flags, int option, const char *value)
{
	static const char *const precisions[] = {"q16", "q8", "f32"}, *const types[] = {"f16",
											"f32"};
	struct fm_model_options *options = &flags->model_options;
	const struct fm_kernels *kernels;
	int name = 0, err;

	switch (option) {
	case 'P':
		err = fm_parse_name("--precision", value, precisions, 3, &name);
		options->precision = name == 2 ? FM_PRECISION_F32
				     : name    ? FM_PRECISION_Q8
					       : FM_PRECISION_Q16;
		return err;
	case 'K':
		err = fm_parse_name("--kv", value, types, 2, &name);
		options->kv_element = name ? FM_ELEMENT_F32 : FM_ELEMENT_F16;
		return err;
	default:
		options->isa = value;
		/* What this processor lacks is not the command line's fault: the model says so. */
		if (fm_kernels_select(value, &kernels) == FM_ERR_INVALID)
			return fm_fail(FM_ERR_INVALID, "--isa %s: %s", value, fm_error_detail());
		return 0;
	}
}

int fm_engine_flags_take(struct fm_engine_flags *flags, int option, const char *value)
{
	int err = 0;

	switch (option) {
	case 'm':
		flags->model = value;
		break;
	case 'S':
		flags->pool_socket = value;
		break;
	case 'L':
		flags->logits_log = value;
		break;
	case 'I':
	case 'P':
	case 'K':
		err = take_name(flags, option, value);
		break;
	case 't':
		err = fm_parse_u32("--threads", value, 1, 64, &flags->model_options.threads);
		break;
	case 'C':
		err = fm_parse_u32("--chunk", value, 1, 65536, &flags->chunk);
		break;
	case 'B':
		err = fm_parse_u32("--max-batch", value, 1, 256, &flags->max_batch);
		break;
	case 'Z':
		flags->has_pool_bytes = true;
		err = fm_parse_bytes("--pool-size", value, FM_POOL_BYTES_MIN, &flags->pool_bytes);
		break;
	default:
		return 0;
	}
	return err ? err : 1;
}

int fm_engine_flags_finish(const struct fm_engine_flags *flags, int argc, char **argv)
{
	if (optind < argc)
		return fm_fail(FM_ERR_INVALID, "\"%.64s\": only flags are taken here",
			       argv[optind]);
	if (!flags->model)
		return fm_fail(FM_ERR_INVALID, "-m FILE is missing: name a GGUF model file");
	if (flags->pool_socket && flags->has_pool_bytes)
		return fm_fail(FM_ERR_INVALID,
			       "--pool-size with --pool-socket: the daemon's pool has a size "
			       "already (fabricmgrd --size): give one of the two");
	return 0;
}

int fm_front_end_flag_take(struct fm_front_end_options *options, int flag, const char *value)
{
	static const char *const tls[] = {"terminated-by-proxy"};
	int err = 0, name;

	switch (flag) {
	case FM_FLAG_LISTEN:
		options->listen = value;
		break;
	case FM_FLAG_TLS:
		err = fm_parse_name("--tls", value, tls, 1, &name);
		options->tls_by_proxy = !err;
		break;
	case FM_FLAG_NAME:
		options->model_name = value;
		break;
	case FM_FLAG_DEADLINE:
		err = fm_parse_u32("--deadline", value, 1, 86400, &options->deadline_s);
		break;
	case FM_FLAG_DRAIN:
		err = fm_parse_u32("--drain-seconds", value, 0, 86400, &options->drain_s);
		break;
	case FM_FLAG_MAX_REQUESTS:
		err = fm_parse_u32("--max-requests", value, 1, FM_FRONT_END_REQUESTS_MAX,
				   &options->max_requests);
		break;
	default:
		return 0;
	}
	return err ? err : 1;
}
