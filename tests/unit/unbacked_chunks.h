/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks without memory behind them, for units of the pure store: giving and taking pages does
 * nothing. Invariant: what a unit sees of its store does not depend on any memory but the index's.
 */
#ifndef FM_TESTS_UNBACKED_CHUNKS_H
#define FM_TESTS_UNBACKED_CHUNKS_H

#include "core/slots.h"

static inline int unbacked_populate(void *context, uint32_t region, uint32_t chunk)
{
	(void)context;
	(void)region;
	(void)chunk;
	return 0;
}

static inline void unbacked_punch(void *context, uint32_t region, uint32_t chunk)
{
	(void)context;
	(void)region;
	(void)chunk;
}

static const struct fm_chunk_ops unbacked_chunks = {unbacked_populate, unbacked_punch};

#endif
