/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this machine could do at most, measured: for `fabric-engine bench`, which says what share of
 * it a test reached.
 */
#ifndef FM_ENGINE_MACHINE_LIMITS_H
#define FM_ENGINE_MACHINE_LIMITS_H

#include <stdint.h>

struct fm_kernels;

struct fm_machine_limits {
	double bytes_per_s; /* the fastest of some pure reads */
	double macs_per_s;  /* 8-bit multiply-adds of VPDPBUSD; 0 where the path has none */
};

/* On @threads threads (0: every CPU); reads as many @bytes as a step does, none with 0. */
int fm_machine_limits_measure(unsigned int threads, const struct fm_kernels *kernels,
			      uint64_t bytes, struct fm_machine_limits *out);

#endif
