/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the instruction-set path at run time. The one file that looks at the machine; every path
 * gives the same bits, so the choice is about speed alone. With FM_PORTABLE_ONLY (fuzz targets are
 * built without the other paths) there is one.
 */
#if defined(__x86_64__) && !defined(FM_PORTABLE_ONLY)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <string.h>

#include <fabricmgr.h>
#include <kernels.h>

#include "paths.h"

#if defined(__x86_64__) && !defined(FM_PORTABLE_ONLY)
/* clang's __builtin_cpu_supports() does not know F16C. */
static bool has_f16c(void)
{
	unsigned int a, b, c = 0, d;

	return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
}

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
	return has_avx2() && __builtin_cpu_supports("avx512f") &&
	       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
	       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
	       __builtin_cpu_supports("avx512vbmi");
}

enum {
	LEAF_7_AMX = 1 << 24 | 1 << 25, /* of EDX: tiles, and their products of 8-bit integers */
	REQUEST_PERMISSION = 0x1023,	/* ARCH_REQ_XCOMP_PERM, absent from older headers */
	TILE_DATA = 18,			/* XFEATURE_XTILEDATA */
};

static bool has_amx(void)
{
	unsigned int a, b, c, d = 0;

	return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
	       (d & LEAF_7_AMX) == LEAF_7_AMX;
}

/* Linux lets a process use tiles once it has asked; asking again changes nothing. */
static bool may_use_tiles(void)
{
	return !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}
#endif

static const char *what_lacks(const char *isa)
{
	if (!strcmp(isa, "avx2"))
		return "this processor lacks AVX2, FMA or F16C";
	if (!strcmp(isa, "avx512"))
		return "this processor lacks AVX-512 F, BW, DQ, VL, VNNI or VBMI";
#if defined(__x86_64__) && !defined(FM_PORTABLE_ONLY)
	if (has_amx())
		return "the kernel gives this process no AMX tiles (Linux 5.16 does)";
#endif
	return "this processor lacks AMX INT8, or what avx512 needs";
}

int fm_kernels_select(const char *isa, const struct fm_kernels **out)
{
	*out = NULL;
	if (isa && strcmp(isa, "portable") && strcmp(isa, "avx2") && strcmp(isa, "avx512") &&
	    strcmp(isa, "amx"))
		return fm_fail(
			FM_ERR_INVALID,
			"instruction set \"%s\" is not known: use portable, avx2, avx512 or amx",
			isa);
#if defined(__x86_64__) && !defined(FM_PORTABLE_ONLY)
	__builtin_cpu_init();
	if ((!isa || !strcmp(isa, "amx")) && has_amx() && may_use_tiles())
		*out = &fm_kernels_amx;
	else if ((!isa || !strcmp(isa, "avx512")) && has_avx512())
		*out = &fm_kernels_avx512;
	else if ((!isa || !strcmp(isa, "avx2")) && has_avx2())
		*out = &fm_kernels_avx2;
#endif
	if (!*out && (!isa || !strcmp(isa, "portable")))
		*out = &fm_kernels_portable;
	if (!*out)
		return fm_fail(FM_ERR_UNSUPPORTED,
			       "instruction set \"%s\": %s; use portable, or "
			       "leave the choice to the program",
			       isa, what_lacks(isa));
	return 0;
}
