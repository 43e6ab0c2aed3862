/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two ways of packing share: a block of a file read into integers and scales, and 32
 * integers of a row written into a group's shape. For pack.c and pack_level.c only. Invariant: no
 * bit of an integer is lost.
 */
#ifndef FM_KERNELS_CPU_PACK_H
#define FM_KERNELS_CPU_PACK_H

#include <kernels.h>

enum { FM_FILE_COLUMNS_MAX = 256, FM_FILE_PARTS_MAX = FM_FILE_COLUMNS_MAX / FM_BLOCK_COLUMNS };

/* One row's block of the file. */
struct fm_unpacked {
	const uint8_t *d, *m; /* half floats */
	uint8_t factors[FM_FILE_PARTS_MAX][2];
	uint8_t q[FM_FILE_COLUMNS_MAX]; /* raised by the format's offset */
};

void fm_unpack(enum fm_format format, const uint8_t *from, struct fm_unpacked *out);
/* 32 integers of row @row of a group. */
void fm_pack_integers(uint8_t *body, unsigned int bits, size_t row, const uint8_t *q);
/* fm_matrix_pack() for level matrices. */
void fm_pack_level(const struct fm_matrix *matrix, const uint8_t *tensor, size_t first_group,
		   size_t end_group);

#endif
