#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Finds what the kernel that is built against has, by compiling: conftest.sh OUT CC FLAGS...
# Writes that header with an FM_HAVE_ macro for each probe that compiles.
set -eu
out=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

probe() { # MACRO, then the program on standard input
	cat >"$folder/probe.c"
	if "$@" -Werror -Wno-missing-prototypes -Wno-missing-declarations -fsyntax-only \
		"$folder/probe.c" >"$folder/log" 2>&1; then
		echo "#define $macro 1" >>"$folder/config.h"
	else
		echo "/* no $macro */" >>"$folder/config.h"
	fi
}

echo "/* What this kernel has: found by kmod/conftest.sh. */" >"$folder/config.h"

macro=FM_HAVE_ANYTHING probe "$@" <<'C'
#include <linux/mm.h>
#include <linux/module.h>
C
if ! grep -q "define FM_HAVE_ANYTHING" "$folder/config.h"; then
	cat "$folder/log" >&2
	echo "kmod/conftest.sh: nothing compiles against this kernel: are its headers whole?" >&2
	exit 1
fi

macro=FM_HAVE_VM_FLAGS_SET probe "$@" <<'C'
#include <linux/mm.h>
void f(struct vm_area_struct *vma) { vm_flags_set(vma, VM_DONTCOPY); }
C
macro=FM_HAVE_IOV_EXTRACT_PAGES probe "$@" <<'C'
#include <linux/uio.h>
void *f(void) { return iov_iter_extract_pages; }
C
macro=FM_HAVE_RECEIVE_FD_USER probe "$@" <<'C'
#include <linux/file.h>
int f(struct file *file) { return receive_fd(file, NULL, 0); }
C
macro=FM_HAVE_SHRINKER_ALLOC probe "$@" <<'C'
#include <linux/mm.h>
#include <linux/shrinker.h>
void *f(void) { return shrinker_alloc(0, "x"); }
C
macro=FM_HAVE_URING_CMD_H probe "$@" <<'C'
#include <linux/io_uring/cmd.h>
C
macro=FM_HAVE_URING_SQE_CMD probe "$@" <<'C'
#include <linux/io_uring/cmd.h>
const void *f(struct io_uring_cmd *cmd) { return io_uring_sqe_cmd(cmd->sqe); }
C
macro=FM_HAVE_URING_CANCEL probe "$@" <<'C'
#include <linux/io_uring/cmd.h>
void f(struct io_uring_cmd *cmd) { io_uring_cmd_mark_cancelable(cmd, IO_URING_F_CANCEL); }
C
macro=FM_HAVE_URING_DONE_RES2 probe "$@" <<'C'
#if __has_include(<linux/io_uring/cmd.h>)
#include <linux/io_uring/cmd.h>
#else
#include <linux/io_uring.h>
#endif
void f(struct io_uring_cmd *cmd) { io_uring_cmd_done(cmd, 0, 0, 0); }
C
mv "$folder/config.h" "$out"
