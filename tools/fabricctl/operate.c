// SPDX-License-Identifier: Apache-2.0
/*
 * fabricctl evict, invalidate, pin, drain and undrain, which change the pool, and snapshot, which
 * writes down all that it tells. Called by main.c. Invariant: what a command says it did, the
 * daemon has answered.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "command_line.h"
#include "fabricctl.h"

int ctl_take_evict(struct ctl *ctl)
{
	ctl->evict_bytes = UINT64_MAX;
	return ctl->argument ? fm_parse_bytes("evict", ctl->argument, 1, &ctl->evict_bytes) : 0;
}

int ctl_evict(struct ctl *ctl)
{
	uint64_t freed = 0;
	char text[32];
	int64_t n = fm_pool_evict(ctl->pool, ctl->evict_bytes, &freed);

	if (n < 0)
		return ctl_fail("evict");
	if (ctl->is_json)
		return ctl_print(json_pack("{s:I, s:I}", "blocks", (json_int_t)n, "bytes",
					   (json_int_t)freed));
	printf("%lld blocks evicted, %s\n", (long long)n, ctl_bytes(freed, text));
	return CTL_OK;
}

static int digit(char letter)
{
	const char *digits = "0123456789abcdef", *at = letter ? strchr(digits, letter) : NULL;

	return at ? (int)(at - digits) : -1;
}

/* @length hexadecimal digits into @bytes, which are zero. */
static bool parse_hex(const char *text, size_t length, uint8_t *bytes)
{
	for (size_t i = 0; i < length; i++) {
		int value = digit(text[i]);

		if (value < 0)
			return false;
		bytes[i / 2] |= (uint8_t)((unsigned int)value << (i % 2 ? 0 : 4));
	}
	return true;
}

/* The first half of a namespace's digest, or all of it. */
static int parse_namespace(const char *text, struct fm_digest *ns)
{
	size_t length = text ? strlen(text) : 0;

	memset(ns, 0, sizeof(*ns));
	return (length == 32 || length == 64) && parse_hex(text, length, ns->bytes)
		       ? 0
		       : fm_fail(FM_ERR_INVALID,
				 "invalidate %.80s: give a namespace: 32 or 64 hexadecimal digits, "
				 "as ls --json shows them",
				 text ? text : "");
}

int ctl_take_invalidate(struct ctl *ctl)
{
	return parse_namespace(ctl->argument, &ctl->ns);
}

int ctl_invalidate(struct ctl *ctl)
{
	int64_t n = fm_pool_invalidate(ctl->pool, &ctl->ns);

	if (n < 0)
		return ctl_fail("invalidate");
	if (ctl->is_json)
		return ctl_print(json_pack("{s:I}", "blocks", (json_int_t)n));
	printf("%lld blocks removed; memory is free when their readers have finished\n",
	       (long long)n);
	return CTL_OK;
}

/* 30s, 10m, 2h, 1d; 0 without a letter. */
static int parse_time(const char *text, uint64_t *ns)
{
	static const char letters[] = "smhd";
	static const uint64_t seconds[] = {1, 60, 3600, 86400};
	char number[12] = "";
	size_t length = text ? strlen(text) : 0;
	const char *letter = length ? strchr(letters, text[length - 1]) : NULL;
	uint64_t value = 0;

	if (length && length < sizeof(number))
		memcpy(number, text, letter ? length - 1 : length);
	if (!*number || fm_parse_u64("pin", number, 0, 1000000, &value) || (value && !letter))
		return fm_fail(FM_ERR_INVALID,
			       "pin KEY %.32s: give a time such as 30s, 10m, 2h or 7d, at most a "
			       "million of them; 0 ends it",
			       text ? text : "");
	*ns = value * (letter ? seconds[letter - letters] : 1) * 1000000000ull;
	return 0;
}

int ctl_take_pin(struct ctl *ctl)
{
	if (!ctl->argument || strlen(ctl->argument) != 32 ||
	    !parse_hex(ctl->argument, 32, ctl->key.bytes))
		return fm_fail(FM_ERR_INVALID,
			       "pin %.80s: give a key: 32 hexadecimal digits, as ls shows "
			       "them, and a time",
			       ctl->argument ? ctl->argument : "");
	return parse_time(ctl->second, &ctl->pin_ns);
}

int ctl_pin(struct ctl *ctl)
{
	struct fm_hint hint = {.size = sizeof(hint), .pin_ns = ctl->pin_ns};
	struct fm_block block;
	int64_t found;
	int err;

	found = fm_pool_acquire(ctl->pool, &ctl->key, 1, &block);
	if (!found)
		fm_fail(FM_ERR_NOT_FOUND, "there is no block %s in memory", ctl->argument);
	if (found != 1)
		return ctl_fail("pin");
	err = fm_block_hint(ctl->pool, &block, &hint);
	fm_block_release(ctl->pool, &block, 1);
	if (err)
		return ctl_fail("pin");
	if (ctl->is_json)
		return ctl_print(json_pack("{s:s, s:I}", "key", ctl->argument, "seconds",
					   (json_int_t)(hint.pin_ns / 1000000000)));
	printf(hint.pin_ns ? "%s goes only when nothing else may, for %s\n"
			   : "%s is no longer pinned\n",
	       ctl->argument, ctl->second);
	return CTL_OK;
}

static int set_draining(struct ctl *ctl, bool is_draining)
{
	if (fm_pool_drain(ctl->pool, is_draining))
		return ctl_fail(is_draining ? "drain" : "undrain");
	if (ctl->is_json)
		return ctl_print(json_pack("{s:b}", "is_draining", (int)is_draining));
	printf(is_draining ? "draining: no new blocks and clients; fabricctl status shows who is "
			     "there\n"
			   : "not draining: new blocks and clients are taken\n");
	return CTL_OK;
}

int ctl_drain(struct ctl *ctl)
{
	return set_draining(ctl, true);
}

int ctl_undrain(struct ctl *ctl)
{
	return set_draining(ctl, false);
}

int ctl_snapshot(struct ctl *ctl)
{
	json_t *info = ctl_info_json(ctl), *status = info ? ctl_status_json(ctl) : NULL;
	json_t *blocks = status ? ctl_blocks_json(ctl) : NULL;

	if (blocks)
		return ctl_print(json_pack("{s:I, s:o, s:o, s:o}", "time", (json_int_t)time(NULL),
					   "info", info, "status", status, "blocks", blocks));
	json_decref(info);
	json_decref(status);
	return ctl_fail("snapshot");
}
