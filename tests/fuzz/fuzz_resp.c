// SPDX-License-Identifier: Apache-2.0
/*
 * Any bytes in any pieces to the parser of Redis commands, long values skipped as a driver does.
 * The first byte chooses the size of the pieces; arguments must lie within what was given.
 */
/* tests/suites/fuzz.py reads this. */
// FUZZ_SOURCES: libfabricmgr/core/resp.c libfabricmgr/base/error.c
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/resp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fm_resp_parser parser;
	enum fm_resp_state state = FM_RESP_MORE;
	size_t step, used = 0;
	char *buffer;

	if (size < 2)
		return 0;
	step = data[0] + 1u;
	data++;
	size--;
	buffer = malloc(size);
	if (!buffer || fm_resp_parser_create(&parser))
		abort();
	for (size_t at = 0; at < size && state != FM_RESP_BROKEN; at += step) {
		size_t n = size - at < step ? size - at : step;

		memcpy(buffer + used, data + at, n);
		used += n;
		while ((state = fm_resp_parse(&parser, buffer, used)) == FM_RESP_COMMAND ||
		       state == FM_RESP_LONG) {
			size_t taken;

			if (state == FM_RESP_LONG) {
				fm_resp_long_taken(&parser);
				continue;
			}
			for (uint32_t i = 0; i < parser.n_args; i++)
				if (!parser.args[i].is_long &&
				    parser.args[i].at + parser.args[i].length > used)
					abort();
			if (parser.n_args > 1 && !parser.args[0].is_long && !parser.args[1].is_long)
				fm_resp_glob(buffer + parser.args[0].at, parser.args[0].length,
					     buffer + parser.args[1].at, parser.args[1].length);
			taken = fm_resp_command_taken(&parser);
			if (taken > used)
				abort();
			memmove(buffer, buffer + taken, used - taken);
			used -= taken;
		}
		if (parser.scanned > used)
			abort();
	}
	fm_resp_parser_destroy(&parser);
	free(buffer);
	return 0;
}
