// SPDX-License-Identifier: Apache-2.0
/*
 * What Redis commands mean for the pool. Called by resp_server.c with a complete command, and
 * before that for each long value that is to be received. Invariant: a value is a sealed block of
 * its bytes; SET seals the new one in the place of the old, so that a reader has one or the other.
 */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <openssl/crypto.h>

#include <fabricmgr_probes.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/limits.h"
#include "core/index.h"
#include "pool/client.h"
#include "pool/resp_front.h"

#define STAGE_NS                                                                                   \
	(5 * FM_NS_PER_MS) /* how long a SET waits for a full pool, and all others with it */

/* An argument's text. Long values have none, nor has what was not given. */
static struct resp_text argument(const struct resp_connection *connection, uint32_t i)
{
	const struct fm_resp_arg *arg = &connection->parser.args[i];

	if (i >= connection->parser.n_args || arg->is_long)
		return (struct resp_text){"", 0};
	return (struct resp_text){connection->in + arg->at, arg->length};
}

static bool is_word(struct resp_text text, const char *word)
{
	return text.length == strlen(word) && !strncasecmp(text.at, word, text.length);
}

static void reply_error(struct resp_connection *connection, const char *text)
{
	resp_reply_format(connection, "-ERR %s", text);
}

static void reply_pool_error(struct resp_connection *connection, int err)
{
	resp_reply_format(connection, "-%s %s", err == FM_ERR_POOL_FULL ? "OOM" : "ERR",
			  fm_error_detail());
}

static void reply_number(struct resp_connection *connection, uint64_t n)
{
	resp_reply_format(connection, ":%llu", (unsigned long long)n);
}

/*
 * The pool's blocks have at least one byte. An empty value is a block of one byte under another
 * key, so that length and kind are known from the key that is found.
 */
static struct fm_key key_of(struct fm_resp *front, struct resp_text name, bool is_empty)
{
	struct fm_digest ns = front->ns;
	struct fm_key key;

	ns.bytes[31] ^= is_empty;
	if (fm_opaque_key(&ns, name.at, name.length, &key))
		memset(&key, 0, sizeof(key)); /* no memory for a hash: found by nobody */
	return key;
}

/* How long a value on NVMe is waited for, under both of its keys. */
#define FETCH_NS (1000ull * 1000 * 1000)

/* In memory now, from NVMe if need be, by @deadline at the latest. */
static bool is_there(struct fm_resp *front, const struct fm_key *key, uint64_t deadline)
{
	uint64_t now = fm_clock_ns();

	return fm_pool_fetch(front->pool, key, 1, now < deadline ? deadline - now : 1) == 1;
}

enum found { FOUND_NOTHING, FOUND_EMPTY, FOUND_VALUE };

/* Leases the value of @name; @redeems: what EXISTS promised of it. */
static enum found find(struct fm_resp *front, struct resp_text name, bool redeems,
		       struct fm_block *block)
{
	struct fm_key key = key_of(front, name, false);
	uint64_t deadline = fm_clock_ns() + FETCH_NS;

	if (redeems && resp_holds_take(front, &key, block))
		return FOUND_VALUE;
	if (is_there(front, &key, deadline) && fm_pool_acquire(front->pool, &key, 1, block) == 1)
		return FOUND_VALUE;
	key = key_of(front, name, true);
	return is_there(front, &key, deadline) ? FOUND_EMPTY : FOUND_NOTHING;
}

/* ---- storing ---- */

void resp_command_long(struct resp_connection *connection, struct resp_long *value)
{
	const struct fm_resp_parser *parser = &connection->parser;
	struct resp_text name = argument(connection, 0);
	bool is_set = is_word(name, "SET"), is_mset = is_word(name, "MSET");

	*value = (struct resp_long){.block.lease = UINT32_MAX};
	if (!connection->is_authenticated)
		snprintf(value->reason, sizeof(value->reason), "authentication required");
	else if ((is_set && parser->n_args != 2) || (is_mset && parser->n_args % 2) ||
		 (!is_set && !is_mset))
		snprintf(value->reason, sizeof(value->reason),
			 "an argument of %llu bytes, in a command of %u so far: only values may be "
			 "that long",
			 (unsigned long long)parser->long_length, parser->scanned);
	else if (parser->long_length > FABRICMGR_CHUNK_BYTES)
		snprintf(value->reason, sizeof(value->reason),
			 "a value of %llu bytes: values have at most %u",
			 (unsigned long long)parser->long_length, FABRICMGR_CHUNK_BYTES);
	else if ((value->error = fm_block_stage(connection->front->pool, parser->long_length, 1,
						&value->block, STAGE_NS)))
		snprintf(value->reason, sizeof(value->reason), "%s", fm_error_detail());
	else
		return;
	value->block.data = NULL;
	if (!value->error)
		value->error = FM_ERR_INVALID;
}

/* False: one of the command's long arguments was refused, and that was answered. */
static bool has_all(struct resp_connection *connection)
{
	for (uint32_t i = 0; i < connection->n_longs; i++) {
		const struct resp_long *value = &connection->longs[i];

		if (value->block.data)
			continue;
		resp_reply_format(connection, "-%s %s",
				  value->error == FM_ERR_POOL_FULL ? "OOM" : "ERR", value->reason);
		return false;
	}
	return true;
}

/* What is to be stored: what was received into a block already, or a text. */
struct value {
	struct resp_text text;
	struct resp_long *received; /* NULL: text */
};

static struct value value_of(struct resp_connection *connection, uint32_t i)
{
	const struct fm_resp_arg *arg = &connection->parser.args[i];

	return (struct value){.text = argument(connection, i),
			      .received = arg->is_long ? &connection->longs[arg->long_at] : NULL};
}

static bool is_empty_value(const struct value *value)
{
	return !value->received && !value->text.length;
}

/* The staged value and its checksum; data NULL: answered with the error. */
static struct fm_block staged_value(struct resp_connection *connection, const struct value *value,
				    uint32_t *crc32c)
{
	bool is_empty = is_empty_value(value);
	struct fm_block block = {.lease = UINT32_MAX};
	int err;

	if (value->received) {
		block = value->received->block;
		value->received->block.data = NULL;
		*crc32c = value->received->crc32c;
		return block;
	}
	err = fm_block_stage(connection->front->pool, is_empty ? 1 : value->text.length, 1, &block,
			     STAGE_NS);
	if (err) {
		reply_pool_error(connection, err);
		block.data = NULL;
	} else {
		*crc32c = fm_crc32c_copy(block.data, is_empty ? "" : value->text.at, block.length);
	}
	return block;
}

/* The values of @names are stored, under @keys; what was known of them before goes. */
static int settle(struct fm_resp *front, const struct resp_text *names, const struct fm_key *keys,
		  uint32_t n, bool is_empty)
{
	struct fm_key others[RESP_BATCH_MAX];
	uint32_t n_others = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct fm_key other = key_of(front, names[i], !is_empty);
		struct fm_block held;

		/* Whether it is on NVMe only the daemon knows. */
		if (front->pool->has_nvme || fm_pool_match(front->pool, &other, 1) == 1)
			others[n_others++] = other;
		/* What EXISTS promised was the old value. */
		if (resp_holds_take(front, is_empty ? &other : &keys[i], &held))
			fm_block_release(front->pool, &held, 1);
		resp_names_add(front, names[i].at, names[i].length, &keys[i]);
	}
	return n_others ? (int)fm_pool_remove(front->pool, others, n_others) : 0;
}

/* 0, FM_ERR_EXISTS (only with @is_new) or an error that was answered. */
static int store(struct resp_connection *connection, struct resp_text name,
		 const struct value *value, bool is_new)
{
	struct fm_resp *front = connection->front;
	bool is_empty = is_empty_value(value);
	struct fm_key key = key_of(front, name, is_empty);
	uint32_t crc32c = 0;
	struct fm_block block = staged_value(connection, value, &crc32c);
	struct fm_seal seal = {.block = &block, .key = key, .flags = is_new ? 0 : FM_SEAL_REPLACE};
	uint64_t deadline = fm_clock_ns() + FETCH_NS;
	int err = 0;

	if (!block.data)
		return FM_ERR_IO;
	if (is_new) {
		struct fm_key other = key_of(front, name, !is_empty);

		if (is_there(front, &key, deadline) || is_there(front, &other, deadline))
			err = FM_ERR_EXISTS;
	}
	if (!err)
		err = fm_block_seal_summed(front->pool, &front->ns, &seal, &crc32c, 1,
					   FM_ANSWER_NS);
	if (err) {
		fm_block_discard(front->pool, &block, 1);
		if (err != FM_ERR_EXISTS)
			reply_pool_error(connection, err);
		return err;
	}
	fm_block_release(front->pool, &block, 1);
	err = settle(front, &name, &key, 1, is_empty);
	if (err < 0)
		reply_pool_error(connection, err);
	return err < 0 ? err : 0;
}

/*
 * Stores @n short values of one length with one question to the daemon for their places and one to
 * seal them. False: there is not room for all of them at once, and nothing was done.
 */
static bool store_alike(struct fm_resp *front, const struct resp_text *names,
			const struct resp_text *values, uint32_t n, int *results)
{
	struct fm_block blocks[RESP_BATCH_MAX];
	struct fm_seal seals[RESP_BATCH_MAX];
	struct fm_key keys[RESP_BATCH_MAX];
	uint32_t checksums[RESP_BATCH_MAX];
	int err;

	if (fm_block_stage(front->pool, values[0].length, n, blocks, STAGE_NS))
		return false;
	for (uint32_t i = 0; i < n; i++) {
		keys[i] = key_of(front, names[i], false);
		checksums[i] = fm_crc32c_copy(blocks[i].data, values[i].at, values[i].length);
		seals[i] = (struct fm_seal){
			.block = &blocks[i], .key = keys[i], .flags = FM_SEAL_REPLACE};
	}
	err = fm_block_seal_summed(front->pool, &front->ns, seals, checksums, n, FM_ANSWER_NS);
	fm_block_release(front->pool, blocks, n); /* those that were sealed */
	fm_block_discard(front->pool, blocks, n); /* the others */
	for (uint32_t i = 0; err && i < n; i++)
		results[i] = seals[i].result ? seals[i].result
					     : settle(front, &names[i], &keys[i], 1, false);
	if (err)
		return true;
	err = settle(front, names, keys, n, false);
	for (uint32_t i = 0; i < n; i++)
		results[i] = err < 0 ? err : 0;
	return true;
}

void resp_batch_end(struct resp_connection *connection)
{
	struct resp_batch *batch = &connection->front->batch;
	const struct resp_text *names = batch->names, *values = batch->values;
	uint32_t n = batch->n;

	batch->n = 0;
	for (uint32_t i = 0, end; i < n; i = end) {
		int results[RESP_BATCH_MAX];

		for (end = i + 1; end < n && values[end].length == values[i].length;)
			end++;
		if (end - i == 1 ||
		    !store_alike(connection->front, names + i, values + i, end - i, results + i)) {
			/* One by one also where there is no room for all at a time. */
			for (uint32_t k = i; k < end; k++)
				if (!store(connection, names[k], &(struct value){.text = values[k]},
					   false))
					resp_reply_text(connection, "+OK\r\n");
			continue;
		}
		for (uint32_t k = i; k < end; k++)
			if (results[k] < 0)
				reply_pool_error(connection,
						 fm_pool_explain(connection->front->pool,
								 results[k], "storing"));
			else
				resp_reply_text(connection, "+OK\r\n");
	}
}

/* A SET without options of a short value, that is not empty, waits for others behind it. */
static bool add_to_batch(struct resp_connection *connection)
{
	struct resp_batch *batch = &connection->front->batch;
	struct resp_text value = argument(connection, 2);

	if (connection->parser.n_args != 3 || !value.length)
		return false;
	if (batch->n == RESP_BATCH_MAX)
		resp_batch_end(connection);
	batch->names[batch->n] = argument(connection, 1);
	batch->values[batch->n++] = value;
	return true;
}

static void command_set(struct resp_connection *connection)
{
	bool is_new = false, is_old = false;
	struct value value;
	struct fm_block block;
	enum found found;
	int err;

	for (uint32_t i = 3; i < connection->parser.n_args; i++) {
		struct resp_text option = argument(connection, i);

		if (is_word(option, "NX")) {
			is_new = true;
		} else if (is_word(option, "XX")) {
			is_old = true;
		} else if (!is_word(option, "KEEPTTL")) {
			reply_error(connection,
				    "syntax error: of SET's options NX and XX are known; "
				    "nothing expires here, entries go when room is "
				    "needed");
			return;
		}
	}
	if (is_old) {
		found = find(connection->front, argument(connection, 1), false, &block);
		if (found == FOUND_VALUE)
			fm_block_release(connection->front->pool, &block, 1);
		if (found == FOUND_NOTHING || is_new) {
			resp_reply_null(connection);
			return;
		}
	}
	value = value_of(connection, 2);
	err = store(connection, argument(connection, 1), &value, is_new);
	if (!err)
		resp_reply_text(connection, "+OK\r\n");
	else if (err == FM_ERR_EXISTS)
		resp_reply_null(connection);
}

static void command_mset(struct resp_connection *connection)
{
	if (connection->parser.n_args % 2 == 0) {
		reply_error(connection, "wrong number of arguments for 'mset' command");
		return;
	}
	/* Not all or nothing: each value is a block of its own, and the first failure is told. */
	for (uint32_t i = 1; i < connection->parser.n_args; i += 2) {
		struct value value = value_of(connection, i + 1);

		if (store(connection, argument(connection, i), &value, false))
			return;
	}
	resp_reply_text(connection, "+OK\r\n");
}

static void command_del(struct resp_connection *connection)
{
	struct fm_resp *front = connection->front;
	int64_t removed = 0;

	for (uint32_t i = 1; i < connection->parser.n_args; i++) {
		struct resp_text name = argument(connection, i);
		struct fm_key keys[2] = {key_of(front, name, false), key_of(front, name, true)};
		struct fm_block held;
		int64_t n;

		if (resp_holds_take(front, &keys[0], &held))
			fm_block_release(front->pool, &held, 1);
		n = fm_pool_remove(front->pool, keys, 2);
		if (n < 0) {
			reply_pool_error(connection, (int)n);
			return;
		}
		removed += n > 0;
	}
	reply_number(connection, (uint64_t)removed);
}

static void command_flush(struct resp_connection *connection)
{
	struct fm_resp *front = connection->front;
	int64_t n = fm_pool_invalidate(front->pool, &front->ns);

	if (n < 0) {
		reply_pool_error(connection, (int)n);
		return;
	}
	resp_holds_expire(front, UINT64_MAX);
	resp_names_clear(&front->names);
	resp_reply_text(connection, "+OK\r\n");
}

/* ---- reading ---- */

static void reply_value(struct resp_connection *connection, struct resp_text name)
{
	struct fm_resp *front = connection->front;
	struct fm_block block;
	enum found found = find(front, name, true, &block);

	front->n_hits += found != FOUND_NOTHING;
	front->n_misses += found == FOUND_NOTHING;
	switch (found) {
	case FOUND_VALUE:
		resp_reply_block(connection, &block, 0, block.length);
		break;
	case FOUND_EMPTY:
		resp_reply_bulk(connection, "", 0);
		break;
	case FOUND_NOTHING:
		resp_reply_null(connection);
	}
}

static void command_get(struct resp_connection *connection)
{
	reply_value(connection, argument(connection, 1));
}

static void command_mget(struct resp_connection *connection)
{
	resp_reply_format(connection, "*%u", connection->parser.n_args - 1);
	for (uint32_t i = 1; i < connection->parser.n_args; i++)
		reply_value(connection, argument(connection, i));
}

static void command_exists(struct resp_connection *connection)
{
	struct fm_resp *front = connection->front;
	uint64_t n = 0;

	for (uint32_t i = 1; i < connection->parser.n_args; i++) {
		struct resp_text name = argument(connection, i);
		struct fm_key keys[2] = {key_of(front, name, false), key_of(front, name, true)};
		struct fm_block block;

		if (fm_pool_match(front->pool, &keys[1], 1) == 1) {
			n++;
		} else if (connection->parser.n_args > 2) {
			n += fm_pool_match(front->pool, keys, 1) == 1;
		} else if (fm_pool_acquire(front->pool, keys, 1, &block) == 1) {
			/* Who asks for one key is about to get it. */
			if (resp_holds_add(front, keys, &block, fm_clock_ns()))
				n++;
			else
				fm_block_release(front->pool, &block, 1);
		}
	}
	reply_number(connection, n);
}

static void command_strlen(struct resp_connection *connection)
{
	struct fm_block block;
	uint64_t length = 0;

	if (find(connection->front, argument(connection, 1), false, &block) == FOUND_VALUE) {
		length = block.length;
		fm_block_release(connection->front->pool, &block, 1);
	}
	reply_number(connection, length);
}

static bool signed_number(struct resp_text text, int64_t *out)
{
	bool is_negative = text.length && *text.at == '-';
	uint64_t value;

	if (!fm_resp_number(text.at + is_negative, text.length - is_negative, &value) ||
	    value > INT64_MAX)
		return false;
	*out = is_negative ? -(int64_t)value : (int64_t)value;
	return true;
}

static void command_getrange(struct resp_connection *connection)
{
	int64_t first, last, length;
	struct fm_block block;

	if (!signed_number(argument(connection, 2), &first) ||
	    !signed_number(argument(connection, 3), &last)) {
		reply_error(connection, "value is not an integer or out of range");
		return;
	}
	if (find(connection->front, argument(connection, 1), false, &block) != FOUND_VALUE) {
		resp_reply_bulk(connection, "", 0);
		return;
	}
	length = (int64_t)block.length;
	first = first < 0 ? (first + length < 0 ? 0 : first + length) : first;
	last = last < 0 ? last + length : last;
	last = last >= length ? length - 1 : last;
	if (first > last) {
		fm_block_release(connection->front->pool, &block, 1);
		resp_reply_bulk(connection, "", 0);
		return;
	}
	resp_reply_block(connection, &block, (uint64_t)first, (uint64_t)(last - first + 1));
}

static void command_ttl(struct resp_connection *connection)
{
	struct fm_block block;
	enum found found = find(connection->front, argument(connection, 1), false, &block);

	if (found == FOUND_VALUE)
		fm_block_release(connection->front->pool, &block, 1);
	resp_reply_text(connection, found == FOUND_NOTHING ? ":-2\r\n" : ":-1\r\n");
}

static void command_type(struct resp_connection *connection)
{
	struct fm_block block;
	enum found found = find(connection->front, argument(connection, 1), false, &block);

	if (found == FOUND_VALUE)
		fm_block_release(connection->front->pool, &block, 1);
	resp_reply_text(connection, found == FOUND_NOTHING ? "+none\r\n" : "+string\r\n");
}

/* ---- looking ---- */

static uint64_t count_blocks(struct fm_resp *front, uint64_t *bytes)
{
	struct fm_block_info info;
	uint32_t cursor = 0;
	uint64_t n = 0;

	*bytes = 0;
	while (fm_pool_walk(front->pool, &cursor, &info) == 1) {
		if (info.state != FABRICMGR_BLOCK_SEALED ||
		    memcmp(info.ns, front->ns.bytes, sizeof(info.ns)))
			continue;
		n++;
		*bytes += info.length;
	}
	return n;
}

static void command_dbsize(struct resp_connection *connection)
{
	uint64_t bytes;

	reply_number(connection, count_blocks(connection->front, &bytes));
}

static void command_scan(struct resp_connection *connection)
{
	struct fm_resp *front = connection->front;
	struct resp_names *names = &front->names;
	struct resp_text cursor_text = argument(connection, 1), pattern = {"*", 1};
	struct resp_name *found[2048];
	uint64_t cursor, count = 10;
	uint32_t n = 0;

	if (!names->bytes_max || names->n_missing) {
		resp_reply_format(connection,
				  "-ERR SCAN: the names of keys are %s; start fabricmgrd with %s "
				  "--redis-names",
				  names->bytes_max ? "incomplete, their table was full"
						   : "not kept",
				  names->bytes_max ? "larger" : "a size as");
		return;
	}
	if (!fm_resp_number(cursor_text.at, cursor_text.length, &cursor)) {
		reply_error(connection, "invalid cursor");
		return;
	}
	for (uint32_t i = 2; i < connection->parser.n_args; i += 2) {
		struct resp_text option = argument(connection, i), value;

		if (i + 1 == connection->parser.n_args) {
			reply_error(connection, "syntax error");
			return;
		}
		value = argument(connection, i + 1);
		if (is_word(option, "MATCH")) {
			pattern = value;
		} else if (!is_word(option, "COUNT") ||
			   !fm_resp_number(value.at, value.length, &count) || !count) {
			reply_error(connection, "syntax error");
			return;
		}
	}
	/* Whole buckets, so that a name is not seen twice; about @count of them, at most what fits.
	 */
	while (cursor < names->bucket_count && n < count && n < 1024) {
		struct resp_name *name = resp_names_bucket(front, (uint32_t)cursor);

		for (; name && n < 2048; name = name->next)
			if (fm_resp_glob(pattern.at, pattern.length, name->text, name->length))
				found[n++] = name;
		cursor++;
	}
	resp_reply_text(connection, "*2\r\n");
	resp_reply_format(
		connection, "$%d\r\n%llu",
		snprintf(NULL, 0, "%llu", (unsigned long long)(cursor % names->bucket_count)),
		(unsigned long long)(cursor % names->bucket_count));
	resp_reply_format(connection, "*%u", n);
	for (uint32_t i = 0; i < n; i++)
		resp_reply_bulk(connection, found[i]->text, found[i]->length);
}

/* Whether an INFO asks for @section, by its name or all of them. */
static bool is_asked(const struct resp_connection *connection, const char *section)
{
	static const char *const all[] = {"all", "default", "everything"};

	for (uint32_t i = 1; i < connection->parser.n_args; i++) {
		struct resp_text asked = argument(connection, i);

		if (is_word(asked, section))
			return true;
		for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++)
			if (is_word(asked, all[k]))
				return true;
	}
	return connection->parser.n_args == 1;
}

struct info_text {
	char text[1400]; /* all sections together have below 1,100 bytes */
	size_t length;
};

static __attribute__((format(printf, 4, 5))) void
add_section(const struct resp_connection *connection, struct info_text *to, const char *section,
	    const char *format, ...)
{
	size_t room = sizeof(to->text) - to->length;
	va_list values;
	int length;

	if (!is_asked(connection, section))
		return;
	length = snprintf(to->text + to->length, room, "%s# %s\r\n", to->length ? "\r\n" : "",
			  section);
	to->length += (size_t)length < room ? (size_t)length : room - 1;
	room = sizeof(to->text) - to->length;
	va_start(values, format);
	length = vsnprintf(to->text + to->length, room, format, values);
	va_end(values);
	to->length += (size_t)length < room ? (size_t)length : room - 1;
}

/* With what redis-cli --stat and redis-benchmark look for. Nothing here blocks a client, and
 * nothing is saved. */
static void command_info(struct resp_connection *connection)
{
	struct fm_resp *front = connection->front;
	struct fm_pool_info info = {.size = sizeof(info)};
	struct info_text to = {.length = 0};
	uint64_t bytes, n;
	int err = fm_pool_info(front->pool, &info);

	if (err) {
		reply_pool_error(connection, err);
		return;
	}
	n = count_blocks(front, &bytes);
	add_section(connection, &to, "Server",
		    "redis_version:7.0.0\r\nredis_mode:standalone\r\n"
		    "fabricmgr_version:%s\r\nprocess_id:%u\r\nuptime_in_seconds:%llu\r\n",
		    fm_version(), info.daemon_pid,
		    (unsigned long long)((fm_clock_ns() - front->started_ns) / FM_NS_PER_S));
	add_section(connection, &to, "Clients",
		    "connected_clients:%u\r\nmaxclients:%u\r\nblocked_clients:0\r\n",
		    front->n_connections, (unsigned int)RESP_CONNECTIONS_MAX);
	add_section(connection, &to, "Memory",
		    "used_memory:%llu\r\nmaxmemory:%llu\r\n"
		    "maxmemory_policy:allkeys-%s\r\nfabricmgr_value_bytes:%llu\r\n"
		    "fabricmgr_held_bytes:%llu\r\nfabricmgr_name_bytes:%llu\r\n"
		    "fabricmgr_names_missing:%llu\r\n",
		    (unsigned long long)info.used_bytes, (unsigned long long)info.total_bytes,
		    info.policy, (unsigned long long)bytes, (unsigned long long)front->holds.bytes,
		    (unsigned long long)front->names.bytes,
		    (unsigned long long)front->names.n_missing);
	add_section(connection, &to, "Persistence", "%s",
		    "loading:0\r\nrdb_bgsave_in_progress:0\r\naof_enabled:0\r\n"
		    "aof_rewrite_in_progress:0\r\n");
	add_section(connection, &to, "Stats",
		    "total_connections_received:%llu\r\ntotal_commands_processed:%llu\r\n"
		    "rejected_connections:%llu\r\nevicted_keys:%llu\r\n",
		    (unsigned long long)front->n_accepted, (unsigned long long)front->n_commands,
		    (unsigned long long)front->n_refused, (unsigned long long)info.evictions);
	add_section(connection, &to, "Keyspace", "db0:keys=%llu,expires=0,avg_ttl=0\r\n",
		    (unsigned long long)n);
	resp_reply_bulk(connection, to.text, to.length);
}

/* ---- the connection ---- */

static bool is_password(struct fm_resp *front, struct resp_text given)
{
	bool is_same;

	pthread_mutex_lock(&front->lock);
	is_same = strlen(front->password) == given.length &&
		  !CRYPTO_memcmp(front->password, given.at, given.length);
	pthread_mutex_unlock(&front->lock);
	return is_same;
}

/* False: answered with an error. */
static bool authenticate(struct resp_connection *connection, struct resp_text user,
			 struct resp_text password)
{
	struct fm_resp *front = connection->front;

	if (!front->has_password) {
		reply_error(connection,
			    "AUTH <password> called without any password configured for "
			    "the default user. Are you sure your configuration is "
			    "correct?");
		return false;
	}
	if (!is_word(user, "default") || !is_password(front, password)) {
		resp_reply_text(
			connection,
			"-WRONGPASS invalid username-password pair or user is disabled.\r\n");
		return false;
	}
	connection->is_authenticated = true;
	return true;
}

static void command_auth(struct resp_connection *connection)
{
	bool has_user = connection->parser.n_args == 3;
	struct resp_text user =
		has_user ? argument(connection, 1) : (struct resp_text){"default", 7};

	if (authenticate(connection, user, argument(connection, has_user ? 2 : 1)))
		resp_reply_text(connection, "+OK\r\n");
}

static void set_name(struct resp_connection *connection, struct resp_text name)
{
	size_t length = name.length < sizeof(connection->name) - 1 ? name.length
								   : sizeof(connection->name) - 1;

	for (size_t i = 0; i < length; i++)
		connection->name[i] = isgraph((unsigned char)name.at[i]) ? name.at[i] : '?';
	connection->name[length] = '\0';
}

static void command_hello(struct resp_connection *connection)
{
	uint32_t n = connection->parser.n_args, i = 1;
	uint64_t version = connection->protocol;
	struct resp_text text;

	if (n > 1) {
		text = argument(connection, i++);
		if (!fm_resp_number(text.at, text.length, &version) || version < 2 || version > 3) {
			resp_reply_text(connection, "-NOPROTO unsupported protocol version\r\n");
			return;
		}
	}
	while (i < n) {
		text = argument(connection, i);
		if (is_word(text, "AUTH") && i + 2 < n) {
			if (!authenticate(connection, argument(connection, i + 1),
					  argument(connection, i + 2)))
				return;
			i += 3;
		} else if (is_word(text, "SETNAME") && i + 1 < n) {
			set_name(connection, argument(connection, i + 1));
			i += 2;
		} else {
			reply_error(connection, "syntax error in HELLO");
			return;
		}
	}
	if (!connection->is_authenticated) {
		resp_reply_text(connection,
				"-NOAUTH HELLO must be called with the client already "
				"authenticated, otherwise the HELLO <proto> AUTH <user> "
				"<pass> option can be used to authenticate the client "
				"and select the RESP protocol version at the same time\r\n");
		return;
	}
	connection->protocol = (uint8_t)version;
	resp_reply_text(connection, version == 3 ? "%7\r\n" : "*14\r\n");
	resp_reply_text(connection,
			"$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n"
			"$5\r\nproto\r\n");
	reply_number(connection, version);
	resp_reply_text(connection, "$2\r\nid\r\n");
	reply_number(connection, connection->id);
	resp_reply_text(connection,
			"$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"
			"$7\r\nmodules\r\n*0\r\n");
}

static void command_client(struct resp_connection *connection)
{
	struct resp_text what = argument(connection, 1);

	if (is_word(what, "SETNAME") && connection->parser.n_args == 3) {
		set_name(connection, argument(connection, 2));
		resp_reply_text(connection, "+OK\r\n");
	} else if (is_word(what, "GETNAME")) {
		resp_reply_bulk(connection, connection->name, strlen(connection->name));
	} else if (is_word(what, "ID")) {
		reply_number(connection, connection->id);
	} else if (is_word(what, "SETINFO") || is_word(what, "NO-EVICT") ||
		   is_word(what, "NO-TOUCH")) {
		resp_reply_text(connection, "+OK\r\n");
	} else {
		reply_error(connection, "of CLIENT, SETNAME, GETNAME, ID and SETINFO are known");
	}
}

static void command_select(struct resp_connection *connection)
{
	struct resp_text number = argument(connection, 1);

	if (number.length == 1 && *number.at == '0')
		resp_reply_text(connection, "+OK\r\n");
	else
		reply_error(connection, "DB index is out of range: there is database 0 alone");
}

static void command_ping(struct resp_connection *connection)
{
	struct resp_text text = argument(connection, 1);

	if (connection->parser.n_args > 1)
		resp_reply_bulk(connection, text.at, text.length);
	else
		resp_reply_text(connection, "+PONG\r\n");
}

static void command_quit(struct resp_connection *connection)
{
	resp_reply_text(connection, "+OK\r\n");
	connection->is_ending = true;
}

/* What redis-cli asks when it starts: nothing to tell is an answer that it takes. */
static void command_nothing(struct resp_connection *connection)
{
	resp_reply_text(connection, "*0\r\n");
}

/* CONFIG GET of what redis-benchmark asks for at its start: nothing is saved here, ever. */
static void command_config(struct resp_connection *connection)
{
	static const struct {
		const char *name, *value;
	} known[] = {{"save", ""}, {"appendonly", "no"}};
	enum { KNOWN = sizeof(known) / sizeof(known[0]) };
	bool is_asked_for[KNOWN] = {false};
	uint32_t n = 0;

	if (!is_word(argument(connection, 1), "GET")) {
		reply_error(connection,
			    "CONFIG knows GET alone: the daemon's own configuration says the rest");
		return;
	}
	for (uint32_t i = 2; i < connection->parser.n_args; i++) {
		struct resp_text pattern = argument(connection, i);

		for (uint32_t k = 0; k < KNOWN; k++) {
			const char *name = known[k].name;

			is_asked_for[k] |=
				fm_resp_glob(pattern.at, pattern.length, name, strlen(name));
		}
	}
	for (uint32_t k = 0; k < KNOWN; k++)
		n += is_asked_for[k];
	resp_reply_format(connection, connection->protocol == 3 ? "%%%u" : "*%u",
			  connection->protocol == 3 ? n : 2 * n);
	for (uint32_t k = 0; k < KNOWN; k++) {
		if (!is_asked_for[k])
			continue;
		resp_reply_bulk(connection, known[k].name, strlen(known[k].name));
		resp_reply_bulk(connection, known[k].value, strlen(known[k].value));
	}
}

/* ---- the table ---- */

static const struct command {
	const char *name;
	uint32_t args_min, args_max; /* with the name */
	bool is_free;		     /* before authentication */
	void (*run)(struct resp_connection *connection);
	/* Takes it now, to be run with others behind it; false: run() it. */
	bool (*defer)(struct resp_connection *connection);
} commands[] = {
	{"GET", 2, 2, false, command_get, NULL},
	{"SET", 3, 8, false, command_set, add_to_batch},
	{"EXISTS", 2, FM_RESP_ARGS_MAX, false, command_exists, NULL},
	{"MGET", 2, FM_RESP_ARGS_MAX, false, command_mget, NULL},
	{"MSET", 3, FM_RESP_ARGS_MAX, false, command_mset, NULL},
	{"DEL", 2, FM_RESP_ARGS_MAX, false, command_del, NULL},
	{"UNLINK", 2, FM_RESP_ARGS_MAX, false, command_del, NULL},
	{"STRLEN", 2, 2, false, command_strlen, NULL},
	{"GETRANGE", 4, 4, false, command_getrange, NULL},
	{"PING", 1, 2, false, command_ping, NULL},
	{"ECHO", 2, 2, false, command_ping, NULL},
	{"TTL", 2, 2, false, command_ttl, NULL},
	{"PTTL", 2, 2, false, command_ttl, NULL},
	{"TYPE", 2, 2, false, command_type, NULL},
	{"DBSIZE", 1, 1, false, command_dbsize, NULL},
	{"SCAN", 2, 6, false, command_scan, NULL},
	{"INFO", 1, FM_RESP_ARGS_MAX, false, command_info, NULL},
	{"FLUSHALL", 1, 2, false, command_flush, NULL},
	{"FLUSHDB", 1, 2, false, command_flush, NULL},
	{"SELECT", 2, 2, false, command_select, NULL},
	{"CLIENT", 2, FM_RESP_ARGS_MAX, false, command_client, NULL},
	{"COMMAND", 1, FM_RESP_ARGS_MAX, false, command_nothing, NULL},
	{"CONFIG", 3, FM_RESP_ARGS_MAX, false, command_config, NULL},
	{"AUTH", 2, 3, true, command_auth, NULL},
	{"HELLO", 1, 7, true, command_hello, NULL},
	{"QUIT", 1, 1, true, command_quit, NULL},
};

void resp_command_run(struct resp_connection *connection)
{
	const struct fm_resp_parser *parser = &connection->parser;
	struct resp_text name;
	char shown[32];

	if (!parser->n_args)
		return; /* an empty line */
	connection->front->n_commands++;
	name = argument(connection, 0);
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		const struct command *command = &commands[i];

		if (!is_word(name, command->name))
			continue;
		FM_PROBE(redis_command, connection->fd, command->name, parser->n_args);
		if (connection->is_authenticated && command->defer && command->defer(connection))
			return;
		resp_batch_end(connection);
		if (!connection->is_authenticated && !command->is_free)
			resp_reply_text(connection, "-NOAUTH Authentication required.\r\n");
		else if (parser->n_args < command->args_min || parser->n_args > command->args_max)
			resp_reply_format(connection,
					  "-ERR wrong number of arguments for '%s' command",
					  command->name);
		else if (has_all(connection))
			command->run(connection);
		return;
	}
	resp_batch_end(connection);
	snprintf(shown, sizeof(shown), "%.*s", (int)(name.length < 30 ? name.length : 30), name.at);
	for (char *c = shown; *c; c++)
		if (!isgraph((unsigned char)*c))
			*c = '?';
	resp_reply_format(connection, "-ERR unknown command '%s'", shown);
}
