/* SPDX-License-Identifier: Apache-2.0 */
#include "generic.h"
#include "paths.h"

const struct fm_kernels fm_kernels_avx512 = {.isa = "avx512", FM_GENERIC_KERNELS};
