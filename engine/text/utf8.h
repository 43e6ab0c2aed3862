/* SPDX-License-Identifier: Apache-2.0 */
/*
 * UTF-8, one character at a time. For the text side of the engine; calls nothing. Invariant: what
 * is valid here is exactly Unicode's well-formed UTF-8 (no surrogates, no overlong forms).
 */
#ifndef FM_ENGINE_UTF8_H
#define FM_ENGINE_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define FM_UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* Looks at the beginning of @n bytes. > 0: a character of that many bytes. 0: the beginning of one
 * that more bytes may complete (or @n is 0). < 0: that many bytes can never become a character. */
static inline int fm_utf8_step(const char *text, size_t n)
{
	const uint8_t *byte = (const uint8_t *)text;
	uint8_t low = 0x80, high = 0xbf; /* the range of the second byte */
	int len;

	if (n == 0)
		return 0;
	if (byte[0] < 0x80)
		return 1;
	if (byte[0] < 0xc2 || byte[0] > 0xf4)
		return -1;
	len = byte[0] < 0xe0 ? 2 : byte[0] < 0xf0 ? 3 : 4;
	if (byte[0] == 0xe0)
		low = 0xa0;
	if (byte[0] == 0xed)
		high = 0x9f;
	if (byte[0] == 0xf0)
		low = 0x90;
	if (byte[0] == 0xf4)
		high = 0x8f;
	for (int i = 1; i < len; i++) {
		if ((size_t)i == n)
			return 0;
		if (byte[i] < low || byte[i] > high)
			return -i;
		low = 0x80;
		high = 0xbf;
	}
	return len;
}

/* How many leading bytes are whole, valid characters. */
static inline size_t fm_utf8_valid_bytes(const char *text, size_t n)
{
	size_t at = 0;
	int step;

	while (at < n && (step = fm_utf8_step(text + at, n - at)) > 0)
		at += step;
	return at;
}

#endif
