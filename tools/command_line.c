// SPDX-License-Identifier: Apache-2.0
/*
 * See command_line.h. Called by each program's main thread; calls getopt_long().
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <fabricmgr.h>

#include "command_line.h"

#define NAME_MAX_BYTES 31 /* of a name that a suggestion is sought for */

/* ---- flags ---------------------------------------------------------------------------------- */

/* Single letters that must be put in, taken out or changed to get from @a to @b. */
static size_t distance(const char *a, const char *b)
{
	size_t row[NAME_MAX_BYTES + 1], n = strlen(b);

	for (size_t j = 0; j <= n; j++)
		row[j] = j;
	for (size_t i = 0; a[i]; i++) {
		size_t before = row[0];

		row[0] = i + 1;
		for (size_t j = 1; j <= n; j++) {
			size_t change = before + (a[i] != b[j - 1]);
			size_t shorter = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;

			before = row[j];
			row[j] = change < shorter ? change : shorter;
		}
	}
	return row[n];
}

const char *fm_nearest_name(const char *word, const char *const *names, size_t n, size_t stride)
{
	const char *best = NULL;
	size_t best_distance = 3;

	if (strlen(word) > NAME_MAX_BYTES)
		return NULL;
	for (size_t i = 0; i < n; i++) {
		const char *name = *(const char *const *)((const char *)names + i * stride);
		size_t far;

		if (strlen(name) > NAME_MAX_BYTES)
			continue;
		far = distance(word, name);
		if (far < best_distance && far < strlen(name)) {
			best = name;
			best_distance = far;
		}
	}
	return best;
}

/* Whether @text begins the names of several flags. */
static bool is_ambiguous(const char *text, const struct option *flags)
{
	size_t n = strcspn(text, "="), matches = 0;

	for (; flags->name; flags++)
		matches += !strncmp(flags->name, text, n);
	return n && matches > 1;
}

static int refuse_flag(const char *text, const struct option *flags)
{
	size_t n = 0, len;
	const char *near;
	char name[64];

	/* Within a bundle of letters @text is still the argument before it. */
	if (strncmp(text, "--", 2) || (optopt && !strchr(text, '=')))
		return fm_fail(FM_ERR_INVALID, "-%c: there is no such flag", optopt);
	len = strcspn(text + 2, "=");
	snprintf(name, sizeof(name), "%.*s", (int)(len < 60 ? len : 60), text + 2);
	if (optopt) /* a known one: it got a value and takes none */
		return fm_fail(FM_ERR_INVALID, "--%s takes no value", name);
	if (is_ambiguous(name, flags))
		return fm_fail(FM_ERR_INVALID, "--%s: several flags begin so: write it in full",
			       name);
	while (flags[n].name)
		n++;
	near = fm_nearest_name(name, &flags->name, n, sizeof(*flags));
	if (near)
		return fm_fail(FM_ERR_INVALID, "--%s: there is no such flag; did you mean --%s?",
			       name, near);
	return fm_fail(FM_ERR_INVALID, "--%s: there is no such flag", name);
}

int fm_command_parse(const struct fm_command *command, int argc, char **argv, void *arg)
{
	int flag, err = 0;

	opterr = 0; /* what getopt would say is not in one line */
	while (!err &&
	       (flag = getopt_long(argc, argv, command->shorts, command->flags, NULL)) != -1) {
		switch (flag) {
		case 'h':
			fputs(command->help, stdout);
			return 0;
		case 'V':
			printf("%s %s\n", command->name, fm_version());
			return 0;
		case '?':
			err = refuse_flag(argv[optind - 1], command->flags);
			break;
		case ':':
			err = fm_fail(FM_ERR_INVALID, "%.64s: give its value", argv[optind - 1]);
			break;
		default:
			err = command->take(arg, flag, optarg);
		}
	}
	return err ? fm_usage_error(command->name) : FM_COMMAND_GO;
}

int fm_usage_error(const char *program)
{
	fprintf(stderr, "%s: %s; see: %s --help\n", program, fm_error_detail(), program);
	return FM_EXIT_USAGE;
}

int fm_finish_output(const char *program, int status)
{
	bool was_bad = ferror(stdout);

	errno = 0;
	if ((!fflush(stdout) && !was_bad) || status)
		return status;
	fprintf(stderr, "%s: standard output could not be written: %s\n", program,
		strerror(errno ? errno : EIO));
	return FM_EXIT_FAILED;
}

/* ---- values --------------------------------------------------------------------------------- */

/* strtoull() takes signs, blanks and what does not fit; a value of a flag has digits alone. */
static bool digits(const char *text, int base, char **end, uint64_t *out)
{
	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*out = strtoull(text, end, base);
	return !errno && *end != text;
}

int fm_parse_u64(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	uint64_t value;
	char *end;

	if (!digits(text, 10, &end, &value) || *end || value < min || value > max)
		return fm_fail(FM_ERR_INVALID, "%s %s: give a whole number from %llu to %llu", what,
			       text, (unsigned long long)min, (unsigned long long)max);
	*out = value;
	return 0;
}

int fm_parse_u32(const char *what, const char *text, uint32_t min, uint32_t max, uint32_t *out)
{
	uint64_t value = *out;
	int err = fm_parse_u64(what, text, min, max, &value);

	*out = (uint32_t)value;
	return err;
}

int fm_parse_octal(const char *what, const char *text, uint32_t min, uint32_t max, uint32_t *out)
{
	uint64_t value;
	char *end;

	if (!digits(text, 8, &end, &value) || *end || value < min || value > max)
		return fm_fail(FM_ERR_INVALID, "%s %s: give an octal number from %04o to %04o",
			       what, text, min, max);
	*out = (uint32_t)value;
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

int fm_parse_bytes(const char *what, const char *text, uint64_t min, uint64_t *out)
{
	static const char units[] = "KkMmGgTt";
	unsigned int shift = 0;
	uint64_t value = 0;
	char *end = NULL;
	bool is_good = digits(text, 10, &end, &value);

	if (is_good && *end) {
		const char *unit = strchr(units, *end);

		shift = unit ? 10 * ((unsigned int)(unit - units) / 2 + 1) : 0;
		is_good = unit && !end[1];
	}
	if (!is_good || value > UINT64_MAX >> shift || value << shift < min)
		return fm_fail(FM_ERR_INVALID,
			       "%s %s: give a size such as 512M or 4G, at least %llu bytes", what,
			       text, (unsigned long long)min);
	*out = value << shift;
	return 0;
}

int fm_parse_quota(const char *what, const char *text, uint64_t *out)
{
	int err = fm_parse_bytes(what, text, 0, out);

	if (!err && *out && *out < FM_CHUNK_BYTES)
		err = fm_fail(FM_ERR_INVALID,
			      "%s %.64s: less than one chunk of %u MiB: was a letter behind it "
			      "forgotten, as in 32G? 0 is no quota",
			      what, text, FM_CHUNK_BYTES >> 20);
	return err;
}

int fm_parse_name(const char *what, const char *text, const char *const *names, size_t n, int *out)
{
	char list[128] = "";
	size_t used = 0;

	for (size_t i = 0; i < n; i++) {
		if (!strcmp(text, names[i])) {
			*out = (int)i;
			return 0;
		}
		used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s",
					 !i	      ? ""
					 : i + 1 == n ? " or "
						      : ", ",
					 names[i]);
		if (used >= sizeof(list))
			break;
	}
	return fm_fail(FM_ERR_INVALID, "%s %.64s: give %s", what, text, list);
}

int fm_parse_listen(const char *what, const char *text, bool is_behind_proxy, const char *remedy,
		    struct sockaddr_storage *out, char *host, size_t host_size)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
	const char *colon = strrchr(text, ':'), *number = colon ? colon + 1 : text;
	size_t len = colon ? (size_t)(colon - text) : 0;
	bool is_loopback;
	unsigned long port;
	char *end;

	memset(out, 0, sizeof(*out));
	port = strtoul(number, &end, 10);
	if (*number < '0' || *number > '9' || *end || port > 65535 || len >= host_size)
		return fm_fail(FM_ERR_INVALID,
			       "%s %.200s: give host:port, such as 127.0.0.1:8080; the port "
			       "is at most 65535, and 0 is any free one",
			       what, text);
	if (len > 2 && text[0] == '[' && text[len - 1] == ']')
		snprintf(host, host_size, "%.*s", (int)len - 2, text + 1);
	else if (!len || !strncmp(text, "localhost:", 10))
		snprintf(host, host_size, "127.0.0.1");
	else
		snprintf(host, host_size, "%.*s", (int)len, text);
	if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons((uint16_t)port);
		is_loopback = (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
	} else if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons((uint16_t)port);
		is_loopback = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
	} else {
		return fm_fail(FM_ERR_INVALID,
			       "%s %s: \"%s\" is not an IP address; give one of this "
			       "machine's, such as 127.0.0.1",
			       what, text, host);
	}
	if (!is_loopback && !is_behind_proxy)
		return fm_fail(FM_ERR_PERMISSION,
			       "%s %s is not loopback, and this program does not encrypt: %s", what,
			       text, remedy);
	return 0;
}

int fm_listen_failed(const char *what, const char *text, int error)
{
	return fm_fail(FM_ERR_IO, "%s %s: cannot listen there: %s: %s", what, text, strerror(error),
		       error == EADDRINUSE ? "another program does: choose another port"
					   : "choose an address of this machine and a port that "
					     "this user may use");
}
