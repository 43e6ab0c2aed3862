/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Probes for tracers (USDT, sys/sdt.h): FM_PROBE(name, arguments) is a no-op instruction and a
 * note in the program, by which bpftrace, perf and gdb find the arguments. Any layer may use it; it
 * is not installed. Documentation/probes.md has each with its arguments.
 * Invariant: arguments are numbers and pointers that are at hand: nothing is computed for a probe.
 */
#ifndef FABRICMGR_PROBES_H
#define FABRICMGR_PROBES_H

#if defined(__has_include) && __has_include(<sys/sdt.h>)

#define SDT_USE_VARIADIC
#include <sys/sdt.h>

#define FM_PROBE(name, ...) STAP_PROBEV(fabricmgr, name, ##__VA_ARGS__)

#else

/* Built without systemtap-sdt-dev: no probes, and arguments count as used. */
static inline void fm_probe_nothing(int first, ...)
{
	(void)first;
}
#define FM_PROBE(name, ...) fm_probe_nothing(0, ##__VA_ARGS__)

#endif
#endif
