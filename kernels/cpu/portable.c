/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The portable path: the generic C for the build's base instruction set. It runs everywhere,
 * slowly, and is what the other paths are compared with, byte for byte.
 */
#include "generic.h"
#include "paths.h"

const struct fm_kernels fm_kernels_portable = {
	.isa = "portable", FM_GENERIC_KERNELS, .product_level = fm_generic_product_level};
