/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines of every program: flags, values, and what is said when they are wrong. Linked into
 * fabric-engine, fabricmgrd and fabricctl; calls the library's public header only. Invariant: a
 * wrong command line gives one line on standard error, which names the flag, the value and what is
 * allowed, and exit status 2.
 */
#ifndef FM_COMMAND_LINE_H
#define FM_COMMAND_LINE_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sockaddr_storage;

#define FM_EXIT_FAILED 1
#define FM_EXIT_USAGE  2

/* What a program, or a subcommand of one, takes. */
struct fm_command {
	const char *name;	    /* "fabric-engine run" */
	const char *shorts;	    /* of getopt_long(); begins with ':', and has h */
	const struct option *flags; /* val 'h' of --help, 'V' of --version */
	const char *help;
	/* Takes a flag and its value: 0, or negative with fm_error_detail() set. */
	int (*take)(void *arg, int flag, const char *value);
};

/* What fm_command_parse() returns when the program shall go on. */
#define FM_COMMAND_GO (-1)
/* Reads the flags. FM_COMMAND_GO: arguments stand at argv[optind]; else the exit status: help or
 * the version was printed, or what is wrong was said. */
int fm_command_parse(const struct fm_command *command, int argc, char **argv, void *arg);
/* "PROGRAM: DETAIL; see: PROGRAM --help" with fm_error_detail(); returns FM_EXIT_USAGE. */
int fm_usage_error(const char *program);
/* The last thing a program does with standard output: @status, or, when that is 0 and something
 * could not be written, FM_EXIT_FAILED, having said so. */
int fm_finish_output(const char *program, int status);
/* The one of @n names at @names (@stride bytes apart) that @word was probably meant to be, or NULL.
 */
const char *fm_nearest_name(const char *word, const char *const *names, size_t n, size_t stride);

/* Values. Each returns 0, or FM_ERR_INVALID with "@what @text: give …" as detail. */
int fm_parse_u64(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *out);
int fm_parse_u32(const char *what, const char *text, uint32_t min, uint32_t max, uint32_t *out);
/* Digits of base 8. */
int fm_parse_octal(const char *what, const char *text, uint32_t min, uint32_t max, uint32_t *out);
int fm_parse_float(const char *what, const char *text, double min, double max, float *out);
/* 512M, 4G, 65536 …: K, M, G and T are powers of 1024. */
int fm_parse_bytes(const char *what, const char *text, uint64_t min, uint64_t *out);
/* Of memory that is given out in chunks: 0 or one chunk at least. */
int fm_parse_quota(const char *what, const char *text, uint64_t *out);
/* host:port of this machine, IPv4 or [IPv6]; @host as text. What is not loopback needs
 * @is_behind_proxy, and @remedy says how. */
int fm_parse_listen(const char *what, const char *text, bool is_behind_proxy, const char *remedy,
		    struct sockaddr_storage *out, char *host, size_t host_size);
/* FM_ERR_IO of a program that cannot listen at "@what @text", with what to do about @error. */
int fm_listen_failed(const char *what, const char *text, int error);
/* One of a list of @n names (at most 8); *@out is its number. */
int fm_parse_name(const char *what, const char *text, const char *const *names, size_t n, int *out);

#endif
