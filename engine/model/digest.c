/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SHA-256 of a model file, remembered between runs in
 * ${XDG_CACHE_HOME:-~/.cache}/fabricmgr/digests. Called by model.c for the namespace. Invariant: a
 * remembered digest is used only while device, inode, size and both times are those of the file
 * that was hashed; a cache that cannot be read or written costs time, no more.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
/* As in libfabricmgr/core/keys.c: the calls that need no memory. */
#define OPENSSL_API_COMPAT 10100
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/state.h"

enum { READ_BYTES = 1 << 20, PATH_BYTES = 4096, LINE_BYTES = 256 };

/* What must be unchanged, in text: the first part of the cache file's one line. */
static void identity(const struct stat *st, char *out)
{
	snprintf(out, LINE_BYTES, "%ju %ju %jd %jd.%09ld %jd.%09ld", (uintmax_t)st->st_dev,
		 (uintmax_t)st->st_ino, (intmax_t)st->st_size, (intmax_t)st->st_mtim.tv_sec,
		 st->st_mtim.tv_nsec, (intmax_t)st->st_ctim.tv_sec, st->st_ctim.tv_nsec);
}

/* Creates the folders and writes the cache file's path. One file for each inode: the cache is
 * bounded. */
static bool cache_path(const struct stat *st, char *out)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	char folder[PATH_BYTES / 2];
	int n;

	if (cache && cache[0] == '/')
		n = snprintf(folder, sizeof(folder), "%s/fabricmgr/digests", cache);
	else if (home && home[0] == '/')
		n = snprintf(folder, sizeof(folder), "%s/.cache/fabricmgr/digests", home);
	else
		return false;
	if (n < 0 || (size_t)n >= sizeof(folder))
		return false;
	for (char *slash = folder + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		mkdir(folder, 0755);
		*slash = '/';
	}
	mkdir(folder, 0755);
	snprintf(out, PATH_BYTES, "%s/%ju-%ju", folder, (uintmax_t)st->st_dev,
		 (uintmax_t)st->st_ino);
	return true;
}

static bool cache_read(const char *path, const char *wanted, struct fm_digest *out)
{
	char line[2 * LINE_BYTES] = "";
	size_t n = strlen(wanted);
	FILE *file = fopen(path, "re");
	bool is_read = file && fgets(line, sizeof(line), file);

	if (file)
		fclose(file);
	if (!is_read || strncmp(line, wanted, n) || line[n] != ' ')
		return false;
	for (size_t i = 0; i < sizeof(out->bytes); i++) {
		if (sscanf(line + n + 1 + 2 * i, "%2hhx", &out->bytes[i]) != 1)
			return false;
	}
	return true;
}

/* Written beside and renamed, so that a reader never sees half a line. */
static void cache_write(const char *path, const char *identity, const struct fm_digest *digest)
{
	char temporary[PATH_BYTES + 32];
	FILE *file;
	bool is_written;

	snprintf(temporary, sizeof(temporary), "%s.%ld", path, (long)getpid());
	file = fopen(temporary, "we");
	if (!file)
		return;
	fprintf(file, "%s ", identity);
	for (size_t i = 0; i < sizeof(digest->bytes); i++)
		fprintf(file, "%02x", digest->bytes[i]);
	fputc('\n', file);
	is_written = !ferror(file);
	is_written = fclose(file) == 0 && is_written;
	if (!is_written || rename(temporary, path))
		unlink(temporary);
}

static int hash_file(const char *path, int fd, struct fm_digest *out)
{
	unsigned char *buffer = malloc(READ_BYTES);
	SHA256_CTX hash;
	int error = 0;
	ssize_t n;

	if (!buffer)
		return fm_fail(FM_ERR_NO_MEMORY, "no memory to hash %s", path);
	SHA256_Init(&hash);
	while ((n = read(fd, buffer, READ_BYTES)) > 0 || (n < 0 && errno == EINTR))
		if (n > 0)
			SHA256_Update(&hash, buffer, (size_t)n);
	if (n < 0)
		error = fm_fail(FM_ERR_IO, "could not read %s: %s", path, strerror(errno));
	else
		SHA256_Final(out->bytes, &hash);
	free(buffer);
	return error;
}

int fm_file_digest(const char *path, struct fm_digest *out)
{
	char before[LINE_BYTES], after[LINE_BYTES], cache[PATH_BYTES];
	struct stat st;
	bool has_cache;
	int error, fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st)) {
		error = fm_fail(FM_ERR_IO, "could not open %s to hash it: %s", path,
				strerror(errno));
		goto out;
	}
	identity(&st, before);
	has_cache = cache_path(&st, cache);
	error = 0;
	if (has_cache && cache_read(cache, before, out))
		goto out;
	error = hash_file(path, fd, out);
	if (error)
		goto out;
	if (fstat(fd, &st)) {
		error = fm_fail(FM_ERR_IO, "could not look at %s: %s", path, strerror(errno));
		goto out;
	}
	identity(&st, after);
	if (strcmp(before, after))
		error = fm_fail(FM_ERR_CORRUPT, "%s changed while it was hashed", path);
	else if (has_cache)
		cache_write(cache, before, out);
out:
	if (fd >= 0)
		close(fd);
	return error;
}
