/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Half floats in C: conversion to and from float32, rounding to nearest even. For kernels/ only.
 * Invariant: the C code gives what VCVTPH2PS and VCVTPS2PH give, for every input.
 */
#ifndef FM_KERNELS_CPU_HALF_H
#define FM_KERNELS_CPU_HALF_H

#include <stdint.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

static inline uint32_t fm_float_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static inline float fm_bits_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline float fm_half_to_float(uint16_t half)
{
#ifdef __F16C__
	return _cvtsh_ss(half);
#else
	uint32_t sign = (uint32_t)(half & 0x8000) << 16;
	uint32_t exponent = (half >> 10) & 31, mantissa = half & 0x3ff;

	if (exponent == 31) /* infinity, or a NaN made quiet */
		return fm_bits_float(sign | 0x7f800000 | mantissa << 13 |
				     (mantissa ? 0x400000 : 0));
	if (exponent == 0) /* zero and subnormals: exact */
		return fm_bits_float(sign | fm_float_bits((float)mantissa * 0x1p-24f));
	return fm_bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
#endif
}

static inline uint16_t fm_float_to_half(float value)
{
#ifdef __F16C__
	return _cvtss_sh(value, 0); /* 0: to nearest even */
#else
	uint32_t bits = fm_float_bits(value), sign = bits >> 16 & 0x8000;

	bits &= 0x7fffffff;
	if (bits > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (bits >> 13 & 0x3ff));
	if (bits >= 0x477ff000) /* rounds to 65536 or more */
		return (uint16_t)(sign | 0x7c00);
	if (bits < 0x38800000) /* below 2^-14: the float adder rounds at the ulp of 0.5, 2^-24 */
		return (uint16_t)(sign | (fm_float_bits(fm_bits_float(bits) + 0.5f) - 0x3f000000));
	bits += 0xc8000fff + (bits >> 13 & 1);
	return (uint16_t)(sign | bits >> 13);
#endif
}

#endif
