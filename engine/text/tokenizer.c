// SPDX-License-Identifier: Apache-2.0
/*
 * Byte-level byte-pair encoding (tokenizer.ggml.model = gpt2) and SentencePiece's merging by score
 * (llama). The engine and the chat template call it; it calls the pre-tokenizer and reads the model
 * file once. Invariant: nothing changes after fm_tokenizer_create(); each call of encode has its
 * own working memory.
 *
 * SentencePiece writes a blank as U+2581; here both are a blank from the beginning, so that pieces
 * are what they stand for. A byte for which the vocabulary has no token is left out, as in
 * Transformers and llama.cpp (small vocabularies lack some control characters and bytes that no
 * assigned character uses).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <fabricmgr.h>

#include "model/gguf.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

/* Of tokens and of merges: four times and twice the largest known. Whatever a file claims, tables
 * made of it take less than 40 MiB beyond its own size (tests/process/test_hostile_files.py). */
#define VOCABULARY_MAX (1u << 20)
#define TEXT_BYTES_MAX (16u << 20) /* one call's working memory stays below 500 MiB */
#define NO_TOKEN       UINT32_MAX
#define ABSORBED       (UINT32_MAX - 1) /* as next of a symbol that is part of another */
#define PIECE_BLANK    "\xe2\x96\x81"

/* tokenizer.ggml.token_type */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

enum token_flag {
	TOKEN_CONTROL = 1, /* found in text only when the caller asks for it */
	TOKEN_USER = 2,	   /* always found in text, before any splitting */
	TOKEN_UNUSED = 4,  /* never found */
	TOKEN_END = 8,
	TOKEN_WHOLE = 16, /* its bytes encode to just this token */
};

struct merge {
	uint32_t left, right, result;
};

struct fm_tokenizer {
	uint32_t n;
	uint8_t *flags;	 /* of each token */
	uint32_t *start; /* n + 1: where each token's bytes begin */
	char *bytes;
	uint32_t *slots; /* bytes to id + 1, open addressing */
	size_t slot_mask;
	struct merge *merges; /* by rank */
	size_t n_merges;
	uint32_t *pairs; /* left and right of a merge to its rank + 1, open addressing */
	size_t pair_mask;
	uint32_t byte_token[256];
	uint32_t *specials; /* control and user tokens, sorted by their bytes */
	size_t n_specials;
	bool begins_special[256];
	uint32_t bos;
	bool adds_bos;
	struct fm_pretokenizer *pre; /* NULL: pieces, merged by score */
	uint32_t *ranks;	     /* of pieces: 0 for the best score, equal for equal ones */
	uint32_t unknown, longest;   /* the token for what has none; bytes of the longest piece */
	bool adds_blank;	     /* before text at the beginning and after specials */
};

struct symbol {
	uint32_t id, previous, next;
};

struct encoder { /* one call's working memory */
	const struct fm_tokenizer *tokenizer;
	uint32_t *ids;
	size_t n, capacity;
	struct symbol *symbols;
	uint64_t
		*heap; /* rank << 32 | position: the lowest rank first, the leftmost among equals */
	size_t n_heap;
	size_t word_capacity;
};

/* ---- tables ------------------------------------------------------------------------------------
 */

static const char *token_bytes(const struct fm_tokenizer *tokenizer, uint32_t id, size_t *len)
{
	*len = tokenizer->start[id + 1] - tokenizer->start[id];
	return tokenizer->bytes + tokenizer->start[id];
}

static uint64_t mix(uint64_t value)
{
	value *= 0x9e3779b97f4a7c15u;
	return value ^ value >> 32;
}

static uint64_t hash_bytes(const char *data, size_t len)
{
	uint64_t hash = len, part;

	for (; len >= 8; data += 8, len -= 8) {
		memcpy(&part, data, 8);
		hash = mix(hash ^ part);
	}
	for (part = 0; len > 0; len--)
		part = part << 8 | (uint8_t)data[len - 1];
	return mix(mix(hash ^ part));
}

static uint32_t *find_slot(const struct fm_tokenizer *tokenizer, const char *data, size_t len)
{
	size_t at = hash_bytes(data, len) & tokenizer->slot_mask;

	for (; tokenizer->slots[at]; at = (at + 1) & tokenizer->slot_mask) {
		size_t have;
		const char *bytes = token_bytes(tokenizer, tokenizer->slots[at] - 1, &have);

		if (have == len && memcmp(bytes, data, len) == 0)
			break;
	}
	return &tokenizer->slots[at];
}

static uint32_t find_token(const struct fm_tokenizer *tokenizer, const char *data, size_t len)
{
	return *find_slot(tokenizer, data, len) - 1; /* an empty slot gives NO_TOKEN */
}

/* The slot with the rank + 1 of the merge of @left and @right, or the empty one where it goes. */
static uint32_t *find_pair(const struct fm_tokenizer *tokenizer, uint32_t left, uint32_t right)
{
	size_t at = mix(mix((uint64_t)left << 32 | right)) & tokenizer->pair_mask;

	for (; tokenizer->pairs[at]; at = (at + 1) & tokenizer->pair_mask) {
		const struct merge *merge = &tokenizer->merges[tokenizer->pairs[at] - 1];

		if (merge->left == left && merge->right == right)
			break;
	}
	return &tokenizer->pairs[at];
}

static size_t table_size(size_t n)
{
	size_t size = 16;

	while (size < 2 * n)
		size *= 2;
	return size;
}

/* ---- merging one word --------------------------------------------------------------------------
 */

static int push_id(struct encoder *encoder, uint32_t id)
{
	if (encoder->n == encoder->capacity) {
		size_t capacity = encoder->capacity ? 2 * encoder->capacity : 256;
		uint32_t *grown = realloc(encoder->ids, capacity * sizeof(*grown));

		if (!grown)
			return fm_fail(FM_ERR_NO_MEMORY, "no memory for %zu tokens", capacity);
		encoder->ids = grown;
		encoder->capacity = capacity;
	}
	encoder->ids[encoder->n++] = id;
	return 0;
}

static int reserve_word(struct encoder *encoder, size_t len)
{
	size_t capacity = 256;

	if (len <= encoder->word_capacity)
		return 0;
	while (capacity < len)
		capacity *= 2;
	free(encoder->symbols);
	free(encoder->heap);
	encoder->word_capacity = 0;
	encoder->symbols = malloc(capacity * sizeof(*encoder->symbols));
	/* A pair for each neighbour at first; each merge takes one out and adds at most two. */
	encoder->heap = malloc(2 * capacity * sizeof(*encoder->heap));
	if (!encoder->symbols || !encoder->heap)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory to encode a word of %zu bytes", len);
	encoder->word_capacity = capacity;
	return 0;
}

static void heap_push(struct encoder *encoder, uint64_t value)
{
	size_t at = encoder->n_heap++;

	while (at > 0 && encoder->heap[(at - 1) / 2] > value) {
		encoder->heap[at] = encoder->heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	encoder->heap[at] = value;
}

static uint64_t heap_pop(struct encoder *encoder)
{
	uint64_t *heap = encoder->heap, top = heap[0];
	uint64_t moving = heap[--encoder->n_heap];
	size_t at = 0;

	for (size_t child; (child = 2 * at + 1) < encoder->n_heap; at = child) {
		if (child + 1 < encoder->n_heap && heap[child + 1] < heap[child])
			child++;
		if (heap[child] >= moving)
			break;
		heap[at] = heap[child];
	}
	heap[at] = moving;
	return top;
}

static void push_pair(struct encoder *encoder, uint32_t left)
{
	const struct symbol *symbol = &encoder->symbols[left];
	uint32_t rank_plus_one;

	if (symbol->next == NO_TOKEN)
		return;
	rank_plus_one =
		*find_pair(encoder->tokenizer, symbol->id, encoder->symbols[symbol->next].id);
	if (rank_plus_one)
		heap_push(encoder, (uint64_t)(rank_plus_one - 1) << 32 | left);
}

/* Merges until no pair has a rule: O(n log n). The first symbol stands at 0 and is never absorbed.
 */
static void merge_word(struct encoder *encoder, const char *word, size_t len)
{
	const struct fm_tokenizer *tokenizer = encoder->tokenizer;
	struct symbol *symbols = encoder->symbols;

	encoder->n_heap = 0;
	for (size_t i = 0; i < len; i++)
		symbols[i] = (struct symbol){tokenizer->byte_token[(uint8_t)word[i]], i - 1,
					     i + 1 < len ? i + 1 : NO_TOKEN};
	for (size_t i = 0; i + 1 < len; i++)
		push_pair(encoder, i);
	while (encoder->n_heap) {
		uint64_t top = heap_pop(encoder);
		const struct merge *merge = &tokenizer->merges[top >> 32];
		uint32_t left = (uint32_t)top, right = symbols[left].next;

		/* Entries of pairs that a merge has changed meanwhile are stale. */
		if (right == NO_TOKEN || symbols[left].id != merge->left ||
		    symbols[right].id != merge->right)
			continue;
		symbols[left].id = merge->result;
		symbols[left].next = symbols[right].next;
		symbols[right].id = NO_TOKEN;
		if (symbols[left].next != NO_TOKEN)
			symbols[symbols[left].next].previous = left;
		if (left > 0)
			push_pair(encoder, symbols[left].previous);
		push_pair(encoder, left);
	}
}

static int encode_word(void *context, const char *word, size_t len)
{
	struct encoder *encoder = context;
	const struct fm_tokenizer *tokenizer = encoder->tokenizer;
	uint32_t id = find_token(tokenizer, word, len);
	int err;

	if (id != NO_TOKEN && ((tokenizer->flags[id] & TOKEN_WHOLE) ||
			       fm_pretokenizer_ignores_merges(tokenizer->pre)))
		return push_id(encoder, id);
	err = reserve_word(encoder, len);
	if (err)
		return err;
	merge_word(encoder, word, len);
	for (uint32_t at = 0; at != NO_TOKEN && !err; at = encoder->symbols[at].next) {
		if (encoder->symbols[at].id != NO_TOKEN)
			err = push_id(encoder, encoder->symbols[at].id);
	}
	return err;
}

/* ---- merging pieces ----------------------------------------------------------------------------
 */

/* Where symbol @at ends; symbols stand where their text begins. */
static size_t symbol_end(const struct encoder *encoder, uint32_t at, size_t len)
{
	return encoder->symbols[at].next == NO_TOKEN ? len : encoder->symbols[at].next;
}

/* The piece that symbol @left and the next one make, or NO_TOKEN. */
static uint32_t join(const struct encoder *encoder, const char *text, size_t len, uint32_t left)
{
	uint32_t right = encoder->symbols[left].next;
	size_t n;

	if (right == NO_TOKEN || right == ABSORBED)
		return NO_TOKEN;
	n = symbol_end(encoder, right, len) - left;
	return n > encoder->tokenizer->longest ? NO_TOKEN
					       : find_token(encoder->tokenizer, text + left, n);
}

static void push_join(struct encoder *encoder, const char *text, size_t len, uint32_t left)
{
	uint32_t id = join(encoder, text, len, left);

	if (id != NO_TOKEN)
		heap_push(encoder, (uint64_t)encoder->tokenizer->ranks[id] << 32 | left);
}

/* The best score first, the leftmost among equals, until nothing joins. */
static void merge_pieces(struct encoder *encoder, const char *text, size_t len)
{
	struct symbol *symbols = encoder->symbols;
	uint32_t previous = NO_TOKEN;

	encoder->n_heap = 0;
	for (size_t at = 0, n; at < len; previous = (uint32_t)at, at += n) {
		int step = fm_utf8_step(text + at, len - at);

		n = step > 0 ? (size_t)step : 1; /* a special may have cut a character */
		symbols[at] =
			(struct symbol){find_token(encoder->tokenizer, text + at, n), previous,
					at + n < len ? (uint32_t)(at + n) : NO_TOKEN};
	}
	for (size_t at = 0; at < len; at = symbol_end(encoder, (uint32_t)at, len))
		push_join(encoder, text, len, (uint32_t)at);
	while (encoder->n_heap) {
		uint64_t top = heap_pop(encoder);
		uint32_t left = (uint32_t)top, right = symbols[left].next;
		uint32_t id = join(encoder, text, len, left);

		/* Entries of pairs that a merge has changed meanwhile are stale. */
		if (id == NO_TOKEN || encoder->tokenizer->ranks[id] != top >> 32)
			continue;
		symbols[left].id = id;
		symbols[left].next = symbols[right].next;
		symbols[right].next = ABSORBED;
		if (symbols[left].next != NO_TOKEN)
			symbols[symbols[left].next].previous = left;
		if (left > 0)
			push_join(encoder, text, len, symbols[left].previous);
		push_join(encoder, text, len, left);
	}
}

/* A symbol's token; a character that has none goes byte by byte. */
static int push_symbol(struct encoder *encoder, const char *text, uint32_t at, size_t end)
{
	const struct fm_tokenizer *tokenizer = encoder->tokenizer;
	int err = 0;

	if (encoder->symbols[at].id != NO_TOKEN)
		return push_id(encoder, encoder->symbols[at].id);
	for (; at < end && !err; at++) {
		uint32_t id = tokenizer->byte_token[(uint8_t)text[at]];

		id = id == NO_TOKEN ? tokenizer->unknown : id;
		if (id != NO_TOKEN)
			err = push_id(encoder, id);
	}
	return err;
}

/* Text without specials, which begins the whole or follows one. */
static int encode_pieces(struct encoder *encoder, const char *text, size_t len)
{
	char *copy;
	size_t n = 0;
	int err;

	if (len == 0)
		return 0;
	copy = malloc(len + 1);
	err = copy ? reserve_word(encoder, len + 1)
		   : fm_fail(FM_ERR_NO_MEMORY, "no memory to encode %zu bytes", len);
	if (err) {
		free(copy);
		return err;
	}
	if (encoder->tokenizer->adds_blank)
		copy[n++] = ' ';
	for (size_t at = 0; at < len;) {
		bool is_blank = len - at >= 3 && memcmp(text + at, PIECE_BLANK, 3) == 0;

		copy[n++] = is_blank ? ' ' : text[at];
		at += is_blank ? 3 : 1;
	}
	merge_pieces(encoder, copy, n);
	for (size_t at = 0, end; at < n && !err; at = end) {
		end = symbol_end(encoder, (uint32_t)at, n);
		err = push_symbol(encoder, copy, (uint32_t)at, end);
	}
	free(copy);
	return err;
}

/* ---- encoding -----------------------------------------------------------------------------------
 */

static bool is_wanted(const struct fm_tokenizer *tokenizer, uint32_t id, bool parse_special)
{
	return parse_special || (tokenizer->flags[id] & TOKEN_USER);
}

/* The first special in sorted order, from @low on, whose byte @depth is not below @byte; all of
 * low..high agree before @depth. */
static size_t narrow(const struct fm_tokenizer *tokenizer, size_t low, size_t high, size_t depth,
		     unsigned int byte)
{
	while (low < high) {
		size_t middle = low + (high - low) / 2, len;
		const char *bytes = token_bytes(tokenizer, tokenizer->specials[middle], &len);

		if (len <= depth || (uint8_t)bytes[depth] < byte)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The longest control or user token at the beginning of @text, or NO_TOKEN. */
static uint32_t match_special(const struct fm_tokenizer *tokenizer, const char *text, size_t len,
			      bool parse_special)
{
	size_t low = 0, high = tokenizer->n_specials, have;
	uint32_t found = NO_TOKEN;

	for (size_t depth = 0; depth < len; depth++) {
		unsigned int byte = (uint8_t)text[depth];

		low = narrow(tokenizer, low, high, depth, byte);
		high = narrow(tokenizer, low, high, depth, byte + 1);
		if (low == high)
			break;
		/* Sorted: the one that ends here, if any, is the first. */
		token_bytes(tokenizer, tokenizer->specials[low], &have);
		if (have == depth + 1 &&
		    is_wanted(tokenizer, tokenizer->specials[low], parse_special))
			found = tokenizer->specials[low];
	}
	return found;
}

/* Text without specials. */
static int encode_plain(struct encoder *encoder, const char *text, size_t len)
{
	const struct fm_tokenizer *tokenizer = encoder->tokenizer;

	if (tokenizer->pre)
		return fm_pretokenizer_split(tokenizer->pre, text, len, encode_word, encoder);
	return encode_pieces(encoder, text, len);
}

static int encode_text(struct encoder *encoder, const char *text, size_t len, bool parse_special)
{
	const struct fm_tokenizer *tokenizer = encoder->tokenizer;
	size_t plain = 0, at = 0;
	int err = 0;

	while (at < len && !err) {
		uint32_t special = NO_TOKEN;
		size_t special_len;

		if (tokenizer->begins_special[(uint8_t)text[at]])
			special = match_special(tokenizer, text + at, len - at, parse_special);
		if (special == NO_TOKEN) {
			at++;
			continue;
		}
		err = encode_plain(encoder, text + plain, at - plain);
		if (!err)
			err = push_id(encoder, special);
		token_bytes(tokenizer, special, &special_len);
		at += special_len;
		plain = at;
	}
	if (err)
		return err;
	return encode_plain(encoder, text + plain, len - plain);
}

int fm_tokenizer_encode(const struct fm_tokenizer *tokenizer, const char *text, size_t len,
			bool parse_special, bool add_bos, struct fm_tokens *out)
{
	struct encoder encoder = {.tokenizer = tokenizer};
	size_t valid;
	int err = 0;

	*out = (struct fm_tokens){0};
	if (len > TEXT_BYTES_MAX)
		return fm_fail(FM_ERR_LIMIT, "a text of %zu bytes is too long: at most %u", len,
			       TEXT_BYTES_MAX);
	valid = fm_utf8_valid_bytes(text, len);
	if (valid < len)
		return fm_fail(FM_ERR_INVALID, "the text is not valid UTF-8 at byte %zu (0x%02x)",
			       valid, (uint8_t)text[valid]);
	if (add_bos && tokenizer->adds_bos)
		err = push_id(&encoder, tokenizer->bos);
	if (!err)
		err = encode_text(&encoder, text, len, parse_special);
	free(encoder.symbols);
	free(encoder.heap);
	if (err) {
		free(encoder.ids);
		return err;
	}
	out->ids = encoder.ids;
	out->n = encoder.n;
	return 0;
}

void fm_tokens_free(struct fm_tokens *tokens)
{
	free(tokens->ids);
	*tokens = (struct fm_tokens){0};
}

/* ---- creation
 * ------------------------------------------------------------------------------------ */

/* The alphabet of byte-level vocabularies: printable Latin-1 stands for itself, the other bytes for
 * U+0100 onwards in order. Returns the byte of a character, or -1. */
static int byte_of_character(uint32_t character)
{
	uint32_t next = 0x100;

	if ((character >= 0x21 && character <= 0x7e) || (character >= 0xa1 && character <= 0xac) ||
	    (character >= 0xae && character <= 0xff))
		return (int)character;
	for (int byte = 0; byte < 256; byte++) {
		if ((byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) ||
		    byte >= 0xae)
			continue;
		if (character == next++)
			return byte;
	}
	return -1;
}

/* Characters of a vocabulary entry to bytes. False: not in that alphabet. */
static bool decode_entry(struct gguf_string entry, char *out, size_t *len)
{
	*len = 0;
	for (size_t at = 0; at < entry.len;) {
		const uint8_t *in = (const uint8_t *)entry.data + at;
		int step = fm_utf8_step(entry.data + at, entry.len - at);
		int byte;

		if (step < 1 || step > 2) /* the alphabet ends at U+0143 */
			return false;
		byte = byte_of_character(step == 1 ? in[0]
						   : (in[0] & 0x1fu) << 6 | (in[1] & 0x3fu));
		if (byte < 0)
			return false;
		out[(*len)++] = (char)byte;
		at += step;
	}
	return true;
}

/* "<0x0A>" as a byte, or -1. */
static int byte_of_piece(struct gguf_string entry)
{
	char digits[3] = {0}, *end;
	long byte;

	if (entry.len != 6 || memcmp(entry.data, "<0x", 3) != 0 || entry.data[5] != '>')
		return -1;
	memcpy(digits, entry.data + 3, 2);
	byte = strtol(digits, &end, 16);
	return end == digits + 2 && byte >= 0 ? (int)byte : -1;
}

/* A piece's text, with blanks for U+2581. */
static size_t decode_piece(struct gguf_string entry, char *out)
{
	size_t len = 0;

	for (size_t at = 0; at < entry.len;) {
		bool is_blank = entry.len - at >= 3 && memcmp(entry.data + at, PIECE_BLANK, 3) == 0;

		out[len++] = is_blank ? ' ' : entry.data[at];
		at += is_blank ? 3 : 1;
	}
	return len;
}

static int no_memory(const struct gguf *file)
{
	return fm_fail(FM_ERR_NO_MEMORY, "%s: no memory for its tokenizer", gguf_path(file));
}

/* Sizes and allocates everything that depends on the vocabulary alone. */
static int allocate_vocabulary(struct fm_tokenizer *tokenizer, const struct gguf *file)
{
	struct gguf_string entry;
	enum gguf_type type;
	size_t n, total = 0, size;

	if (!gguf_get_array(file, "tokenizer.ggml.tokens", &type, &n) || type != GGUF_STRING ||
	    n == 0)
		return fm_fail(FM_ERR_CORRUPT, "%s: has no vocabulary (tokenizer.ggml.tokens)",
			       gguf_path(file));
	if (n > VOCABULARY_MAX)
		return fm_fail(FM_ERR_LIMIT, "%s: has %zu tokens, at most %u are supported",
			       gguf_path(file), n, VOCABULARY_MAX);
	for (size_t i = 0; i < n; i++) {
		gguf_array_string(file, "tokenizer.ggml.tokens", i, &entry);
		total += entry.len;
	}
	if (total > UINT32_MAX)
		return fm_fail(FM_ERR_LIMIT, "%s: its tokens take %zu bytes, more than 4 GiB",
			       gguf_path(file), total);
	size = table_size(n);
	tokenizer->n = n;
	tokenizer->slot_mask = size - 1;
	tokenizer->slots = calloc(size, sizeof(*tokenizer->slots));
	tokenizer->flags = calloc(n, sizeof(*tokenizer->flags));
	tokenizer->start = calloc(n + 1, sizeof(*tokenizer->start));
	tokenizer->specials = calloc(n, sizeof(*tokenizer->specials));
	tokenizer->bytes = malloc(total + 1);
	if (!tokenizer->slots || !tokenizer->flags || !tokenizer->start || !tokenizer->specials ||
	    !tokenizer->bytes)
		return no_memory(file);
	return 0;
}

static uint8_t flags_of_type(int64_t type)
{
	switch (type) {
	case TYPE_UNKNOWN:
	case TYPE_CONTROL:
		return TOKEN_CONTROL;
	case TYPE_USER:
		return TOKEN_USER;
	case TYPE_UNUSED:
		return TOKEN_UNUSED;
	default:
		return 0;
	}
}

/* Writes an entry's bytes at @out and their number to @len. True: text may be made of it. */
static bool load_entry(struct fm_tokenizer *tokenizer, uint32_t id, int64_t type,
		       struct gguf_string entry, char *out, size_t *len)
{
	bool is_plain = !(tokenizer->flags[id] & (TOKEN_CONTROL | TOKEN_USER));
	int byte;

	if (!tokenizer->pre && type == TYPE_BYTE && (byte = byte_of_piece(entry)) >= 0) {
		*out = (char)byte;
		*len = 1;
		tokenizer->byte_token[byte] = id;
		return false;
	}
	if (!tokenizer->pre && !(tokenizer->flags[id] & TOKEN_CONTROL)) {
		*len = decode_piece(entry, out);
		return is_plain;
	}
	if (tokenizer->pre && is_plain && decode_entry(entry, out, len))
		return true;
	memcpy(out, entry.data, entry.len); /* as it is written */
	*len = entry.len;
	return false;
}

static int load_vocabulary(struct fm_tokenizer *tokenizer, const struct gguf *file)
{
	struct gguf_string entry;
	enum gguf_type type;
	uint32_t at = 0;
	size_t n_types;
	int err = allocate_vocabulary(tokenizer, file);

	if (err)
		return err;
	if (gguf_get_array(file, "tokenizer.ggml.token_type", &type, &n_types) &&
	    n_types != tokenizer->n)
		return fm_fail(FM_ERR_CORRUPT, "%s: has %u tokens but %zu token types",
			       gguf_path(file), tokenizer->n, n_types);
	memset(tokenizer->byte_token, 0xff, sizeof(tokenizer->byte_token)); /* NO_TOKEN */
	for (uint32_t id = 0; id < tokenizer->n; id++) {
		int64_t token_type = TYPE_NORMAL;
		bool is_text;
		size_t len;

		gguf_array_string(file, "tokenizer.ggml.tokens", id, &entry);
		gguf_array_i64(file, "tokenizer.ggml.token_type", id, &token_type);
		tokenizer->flags[id] = flags_of_type(token_type);
		tokenizer->start[id] = at;
		is_text = load_entry(tokenizer, id, token_type, entry, tokenizer->bytes + at, &len);
		at += len;
		tokenizer->start[id + 1] = at;
		if (is_text && len && !(tokenizer->flags[id] & TOKEN_UNUSED)) {
			uint32_t *slot = find_slot(tokenizer, tokenizer->bytes + at - len, len);

			if (!*slot) /* of equal entries the first counts */
				*slot = id + 1;
			tokenizer->longest = len > tokenizer->longest ? len : tokenizer->longest;
		}
	}
	for (int byte = 0; byte < 256 && tokenizer->pre; byte++)
		tokenizer->byte_token[byte] = find_token(tokenizer, (const char[]){(char)byte}, 1);
	return 0;
}

static int compare_tokens(const void *a, const void *b, void *context)
{
	const struct fm_tokenizer *tokenizer = context;
	size_t len_a, len_b;
	const char *x = token_bytes(tokenizer, *(const uint32_t *)a, &len_a);
	const char *y = token_bytes(tokenizer, *(const uint32_t *)b, &len_b);
	int order = memcmp(x, y, len_a < len_b ? len_a : len_b);

	return order ? order : len_a < len_b ? -1 : len_a > len_b;
}

static void sort_specials(struct fm_tokenizer *tokenizer)
{
	for (uint32_t id = 0; id < tokenizer->n; id++) {
		size_t len;
		const char *bytes = token_bytes(tokenizer, id, &len);

		if (!len || !(tokenizer->flags[id] & (TOKEN_CONTROL | TOKEN_USER)))
			continue;
		tokenizer->specials[tokenizer->n_specials++] = id;
		tokenizer->begins_special[(uint8_t)bytes[0]] = true;
	}
	qsort_r(tokenizer->specials, tokenizer->n_specials, sizeof(*tokenizer->specials),
		compare_tokens, tokenizer);
}

/* "left right" as the ids of both and of what they make. False: not three tokens. */
static bool parse_merge(const struct fm_tokenizer *tokenizer, struct gguf_string text, char *buffer,
			struct merge *out)
{
	/* Never at 0: a blank is written as another character in this alphabet. */
	const char *blank = text.len > 1 ? memchr(text.data + 1, ' ', text.len - 1) : NULL;
	struct gguf_string left, right;
	size_t n_left, n_right;

	if (!blank)
		return false;
	left = (struct gguf_string){text.data, (size_t)(blank - text.data)};
	right = (struct gguf_string){blank + 1, text.len - left.len - 1};
	if (!decode_entry(left, buffer, &n_left) || !decode_entry(right, buffer + n_left, &n_right))
		return false;
	out->left = find_token(tokenizer, buffer, n_left);
	out->right = find_token(tokenizer, buffer + n_left, n_right);
	out->result = find_token(tokenizer, buffer, n_left + n_right);
	return n_left && n_right && out->left != NO_TOKEN && out->right != NO_TOKEN &&
	       out->result != NO_TOKEN;
}

static int load_merges(struct fm_tokenizer *tokenizer, const struct gguf *file)
{
	struct gguf_string text;
	enum gguf_type type;
	size_t longest = 0, size, n;
	char *buffer;
	int err = 0;

	if (!gguf_get_array(file, "tokenizer.ggml.merges", &type, &n) || type != GGUF_STRING)
		return fm_fail(FM_ERR_CORRUPT, "%s: has no merges (tokenizer.ggml.merges)",
			       gguf_path(file));
	if (n > VOCABULARY_MAX)
		return fm_fail(FM_ERR_LIMIT, "%s: has %zu merges, at most %u are supported",
			       gguf_path(file), n, VOCABULARY_MAX);
	for (size_t i = 0; i < n; i++) {
		gguf_array_string(file, "tokenizer.ggml.merges", i, &text);
		longest = text.len > longest ? text.len : longest;
	}
	size = table_size(n);
	buffer = malloc(longest + 1);
	tokenizer->merges = calloc(n ? n : 1, sizeof(*tokenizer->merges));
	tokenizer->pairs = calloc(size, sizeof(*tokenizer->pairs));
	tokenizer->pair_mask = size - 1;
	tokenizer->n_merges = n;
	if (!buffer || !tokenizer->merges || !tokenizer->pairs)
		err = no_memory(file);
	for (size_t i = 0; !err && i < n; i++) {
		struct merge *merge = &tokenizer->merges[i];
		uint32_t *slot;

		gguf_array_string(file, "tokenizer.ggml.merges", i, &text);
		if (!parse_merge(tokenizer, text, buffer, merge)) {
			err = fm_fail(
				FM_ERR_CORRUPT,
				"%s: merge %zu does not join two tokens of the vocabulary to a "
				"third: damaged or badly converted",
				gguf_path(file), i);
			break;
		}
		slot = find_pair(tokenizer, merge->left, merge->right);
		if (!*slot) /* of equal merges the first counts */
			*slot = i + 1;
	}
	free(buffer);
	return err;
}

/* Which tokens are what their own bytes encode to: such words need no merging later. */
static int find_whole_tokens(struct fm_tokenizer *tokenizer, const struct gguf *file)
{
	struct encoder encoder = {.tokenizer = tokenizer};
	int err = 0;

	for (uint32_t id = 0; id < tokenizer->n && !err; id++) {
		size_t len;
		const char *bytes = token_bytes(tokenizer, id, &len);

		/* Longer ones are no words; leaving them out only costs time. */
		if (len == 0 || len > 1024 || find_token(tokenizer, bytes, len) != id)
			continue;
		err = reserve_word(&encoder, len);
		if (err)
			break;
		merge_word(&encoder, bytes, len);
		if (encoder.symbols[0].id == id)
			tokenizer->flags[id] |= TOKEN_WHOLE;
	}
	free(encoder.symbols);
	free(encoder.heap);
	return err ? no_memory(file) : 0;
}

static int compare_scores(const void *a, const void *b, void *context)
{
	const float *scores = context;
	float x = scores[*(const uint32_t *)a], y = scores[*(const uint32_t *)b];

	return x > y ? -1 : x < y;
}

/* The order of the pieces' scores. */
static int load_scores(struct fm_tokenizer *tokenizer, const struct gguf *file)
{
	static const char key[] = "tokenizer.ggml.scores";
	uint32_t *order = calloc(tokenizer->n, sizeof(*order)), rank = 0;
	float *scores = calloc(tokenizer->n, sizeof(*scores));
	enum gguf_type type;
	size_t n = 0;
	int err = 0;

	tokenizer->ranks = calloc(tokenizer->n, sizeof(*tokenizer->ranks));
	if (!order || !scores || !tokenizer->ranks)
		err = no_memory(file);
	else if (!gguf_get_array(file, key, &type, &n) || n != tokenizer->n)
		err = fm_fail(FM_ERR_CORRUPT, "%s: has %u tokens but %zu %s", gguf_path(file),
			      tokenizer->n, n, key);
	for (uint32_t id = 0; id < tokenizer->n && !err; id++) {
		order[id] = id;
		if (!gguf_array_f32(file, key, id, &scores[id]) || isnan(scores[id]))
			err = fm_fail(FM_ERR_CORRUPT, "%s: %s: element %u is no number",
				      gguf_path(file), key, id);
	}
	if (!err)
		qsort_r(order, tokenizer->n, sizeof(*order), compare_scores, scores);
	for (uint32_t i = 0; i < tokenizer->n && !err; i++) {
		rank += i && scores[order[i]] != scores[order[i - 1]];
		tokenizer->ranks[order[i]] = rank;
	}
	free(order);
	free(scores);
	return err;
}

/* Reads a token id; *@out stays when the key is absent. */
static int read_id(const struct fm_tokenizer *tokenizer, const struct gguf *file, const char *key,
		   uint32_t *out)
{
	uint32_t id;

	if (!gguf_get_u32(file, key, &id))
		return 0;
	if (id >= tokenizer->n)
		return fm_fail(FM_ERR_CORRUPT, "%s: %s is %u but there are %u tokens",
			       gguf_path(file), key, id, tokenizer->n);
	*out = id;
	return 0;
}

static int load_ends(struct fm_tokenizer *tokenizer, const struct gguf *file)
{
	static const char *const keys[] = {"tokenizer.ggml.eos_token_id",
					   "tokenizer.ggml.eot_token_id",
					   "tokenizer.ggml.eom_token_id"};
	/* Files often leave out all but eos, and for a chat model any of these ends the answer. */
	static const char *const names[] = {"<|im_end|>",   "<|eot_id|>",    "<|eom_id|>",
					    "<|end|>",	    "<end_of_turn>", "<|end_of_text|>",
					    "<|endoftext|>"};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		uint32_t id = NO_TOKEN;
		int err = read_id(tokenizer, file, keys[i], &id);

		if (err)
			return err;
		if (id != NO_TOKEN)
			tokenizer->flags[id] |= TOKEN_END;
	}
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		size_t want = strlen(names[i]), have;
		uint32_t id = match_special(tokenizer, names[i], want, true);

		if (id == NO_TOKEN || !(tokenizer->flags[id] & TOKEN_CONTROL))
			continue;
		token_bytes(tokenizer, id, &have);
		if (have == want)
			tokenizer->flags[id] |= TOKEN_END;
	}
	return 0;
}

static int load_bos(struct fm_tokenizer *tokenizer, const struct gguf *file)
{
	int err;

	tokenizer->bos = NO_TOKEN;
	tokenizer->adds_bos = !tokenizer->pre || fm_pretokenizer_adds_bos(tokenizer->pre);
	gguf_get_bool(file, "tokenizer.ggml.add_bos_token", &tokenizer->adds_bos);
	err = read_id(tokenizer, file, "tokenizer.ggml.bos_token_id", &tokenizer->bos);
	if (err)
		return err;
	if (tokenizer->adds_bos && tokenizer->bos == NO_TOKEN)
		return fm_fail(FM_ERR_CORRUPT,
			       "%s: wants prompts to begin with BOS but has no "
			       "tokenizer.ggml.bos_token_id",
			       gguf_path(file));
	return 0;
}

/* What pieces have instead of merges. */
static int load_pieces(struct fm_tokenizer *tokenizer, const struct gguf *file)
{
	int err = load_scores(tokenizer, file);

	tokenizer->unknown = NO_TOKEN;
	tokenizer->adds_blank = true;
	gguf_get_bool(file, "tokenizer.ggml.add_space_prefix", &tokenizer->adds_blank);
	return err ? err
		   : read_id(tokenizer, file, "tokenizer.ggml.unknown_token_id",
			     &tokenizer->unknown);
}

struct printable {
	char text[64];
};

/* A name from the file for a message: what could steer a terminal becomes '?'. */
static struct printable printable(struct gguf_string name)
{
	struct printable out = {{0}};

	for (size_t i = 0; i < name.len && i < sizeof(out.text) - 1; i++)
		out.text[i] = name.data[i] >= ' ' && name.data[i] <= '~' ? name.data[i] : '?';
	return out;
}

static int load_pretokenizer(struct fm_tokenizer *tokenizer, const struct gguf *file)
{
	struct gguf_string name;
	int err;

	if (!gguf_get_string(file, "tokenizer.ggml.model", &name))
		return fm_fail(FM_ERR_UNSUPPORTED, "%s: has no tokenizer (tokenizer.ggml.model)",
			       gguf_path(file));
	if (name.len == 5 && memcmp(name.data, "llama", 5) == 0)
		return 0; /* pieces: no splitting before */
	if (name.len != 4 || memcmp(name.data, "gpt2", 4) != 0)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: tokenizer model \"%s\" is not supported; supported are gpt2 "
			       "(byte-level BPE) and llama (SentencePiece)",
			       gguf_path(file), printable(name).text);
	if (!gguf_get_string(file, "tokenizer.ggml.pre", &name))
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: does not name its pre-tokenizer "
			       "(tokenizer.ggml.pre); convert it again with current tools",
			       gguf_path(file));
	err = fm_pretokenizer_create(name.data, name.len, &tokenizer->pre);
	if (err == FM_ERR_NOT_FOUND)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "%s: pre-tokenizer \"%s\" is not supported; supported are %s",
			       gguf_path(file), printable(name).text, fm_pretokenizer_known());
	return err;
}

int fm_tokenizer_create(const struct gguf *file, struct fm_tokenizer **out)
{
	struct fm_tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
	int err;

	*out = NULL;
	if (!tokenizer)
		return no_memory(file);
	err = load_pretokenizer(tokenizer, file);
	if (!err)
		err = load_vocabulary(tokenizer, file);
	if (!err) {
		sort_specials(tokenizer);
		err = tokenizer->pre ? load_merges(tokenizer, file) : load_pieces(tokenizer, file);
	}
	if (!err && tokenizer->pre)
		err = find_whole_tokens(tokenizer, file);
	if (!err)
		err = load_ends(tokenizer, file);
	if (!err)
		err = load_bos(tokenizer, file);
	if (err) {
		fm_tokenizer_destroy(tokenizer);
		return err;
	}
	*out = tokenizer;
	return 0;
}

int fm_tokenizer_open(const char *path, struct fm_tokenizer **out)
{
	struct gguf *file;
	int err = gguf_open(path, &file);

	*out = NULL;
	if (err)
		return err;
	err = fm_tokenizer_create(file, out);
	gguf_close(file);
	return err;
}

void fm_tokenizer_destroy(struct fm_tokenizer *tokenizer)
{
	if (!tokenizer)
		return;
	fm_pretokenizer_destroy(tokenizer->pre);
	free(tokenizer->flags);
	free(tokenizer->start);
	free(tokenizer->bytes);
	free(tokenizer->slots);
	free(tokenizer->merges);
	free(tokenizer->pairs);
	free(tokenizer->ranks);
	free(tokenizer->specials);
	free(tokenizer);
}

/* ---- tokens to text
 * ------------------------------------------------------------------------------- */

const char *fm_tokenizer_piece(const struct fm_tokenizer *tokenizer, uint32_t id, bool special,
			       size_t *len)
{
	*len = 0;
	if (id >= tokenizer->n || (!special && (tokenizer->flags[id] & TOKEN_CONTROL)))
		return "";
	return token_bytes(tokenizer, id, len);
}

uint32_t fm_tokenizer_vocab_size(const struct fm_tokenizer *tokenizer)
{
	return tokenizer->n;
}

bool fm_tokenizer_is_end(const struct fm_tokenizer *tokenizer, uint32_t id)
{
	return id < tokenizer->n && (tokenizer->flags[id] & TOKEN_END);
}

bool fm_tokenizer_is_control(const struct fm_tokenizer *tokenizer, uint32_t id)
{
	return id < tokenizer->n && (tokenizer->flags[id] & TOKEN_CONTROL);
}
