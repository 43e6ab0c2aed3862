/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The AVX-512 path: the generic C compiled for AVX-512, with the matrix products, the attention and
 * the integers of activations replaced by hand-written code; and the AMX path, which is this one
 * with integer products on tiles. Only the dispatcher may call into it. Invariant: the same bits as
 * the portable path.
 */
#include "amx.h"
#include "avx512.h"
#include "generic.h"
#include "paths.h"

static void attention(const struct fm_attention *job, const float *q, float *out)
{
	if (!fm_avx512_attention(job, q, out))
		fm_generic_attention(job, q, out);
}

static void attention_part(const struct fm_attention *job, size_t segment, const float *q,
			   float *parts)
{
	if (!fm_avx512_attention_part(job, segment, q, parts))
		fm_generic_attention_part(job, segment, q, parts);
}

#define KERNELS                                                                                    \
	.rms_norm = fm_generic_rms_norm, .add = fm_generic_add, .scale = fm_generic_scale,         \
	.rope = fm_generic_rope, .rope_halves = fm_generic_rope_halves,                            \
	.silu_multiply = fm_generic_silu_multiply, .gelu_multiply = fm_generic_gelu_multiply,      \
	.quantise = fm_avx512_quantise, .store_kv = fm_generic_store_kv, .attention = attention,   \
	.attention_part = attention_part, .attention_merge = fm_generic_attention_merge,           \
	.quantise_level = fm_avx512_quantise_level, .product_float = fm_avx512_product_float,      \
	.row = fm_generic_row, .integer_peak = fm_avx512_integer_peak

const struct fm_kernels fm_kernels_avx512 = {.isa = "avx512",
					     .product_integer = fm_avx512_product_integer,
					     .product_level = fm_avx512_product_level,
					     KERNELS};

const struct fm_kernels fm_kernels_amx = {.isa = "amx",
					  .product_integer = fm_amx_product_integer,
					  .product_level = fm_amx_product_level,
					  KERNELS};
