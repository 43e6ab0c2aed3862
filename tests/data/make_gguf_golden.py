#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes weight blocks of every format and what the `gguf` package makes of them in float32.

    make_gguf_golden.py FILE [SEED]

needs the packages in tests/data/gguf-requirements.txt. The committed file has seed 0; a fresh seed
makes fresh blocks for the live comparison (tests/process/test_formats.py). tests/unit/
test_dequantise.c reads it: for each format 4 little-endian numbers (GGUF type, rows, columns,
bytes of a row in the file), then the rows as a file stores them, then float32 rows; all of it
through gzip. Scales are random halves of sensible size and, in every third row, infinite, NaN,
denormal, zero, largest; the bytes of the integers are random, and in the first rows every value
from 0 to 255 in turn."""
import gzip
import sys

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

EXTREMES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
            0x7e00, 0xfe00, 0x7c01, 0x3c00, 0xbc00]
# Where the half floats of a block stand; None: every element is a float.
FORMATS = {Type.F32: None, Type.F16: None, Type.BF16: None, Type.Q8_0: [0], Type.Q4_0: [0],
           Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q4_K: [0, 2],
           Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.IQ4_NL: [0]}
COLUMNS, ROWS = 256, 9


def half(chance, is_extreme):
    if is_extreme:
        return chance.choice(EXTREMES)
    return chance.integers(0x1000, 0x3000) | chance.integers(0, 2) << 15


def blocks(kind, chance):
    columns, size = GGML_QUANT_SIZES[kind]
    n = ROWS * COLUMNS // columns
    data = chance.integers(0, 256, (n, size), dtype=numpy.uint8)
    counted = numpy.arange(n * size, dtype=numpy.uint64) % 256
    data.reshape(-1)[:4 * COLUMNS // columns * size] = counted[:4 * COLUMNS // columns * size]
    if FORMATS[kind] is None:
        # Random bytes are floats of every size; here and there one that has nothing but its kind.
        width = 4 if kind == Type.F32 else 2
        values = data.reshape(-1, width)
        for i in range(0, len(values), 8):
            bits = int(chance.choice(EXTREMES))
            if kind != Type.F16:  # sign, largest or smallest exponent, one bit of the mantissa
                bits = (bits & 0x8000) | (0x7f80 if bits & 0x7c00 == 0x7c00 else 0) | (bits & 1)
            values[i, -2:] = numpy.frombuffer(bits.to_bytes(2, "little"), numpy.uint8)
        return data
    for i in range(n):
        for at in FORMATS[kind]:
            bits = int(half(chance, i * columns // COLUMNS % 3 == 2))
            data[i, at:at + 2] = numpy.frombuffer(bits.to_bytes(2, "little"), numpy.uint8)
    return data


def main():
    chance = numpy.random.default_rng(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    out = b""
    for kind in FORMATS:
        data = blocks(kind, chance).reshape(ROWS, -1)
        with numpy.errstate(all="ignore"):
            floats = numpy.ascontiguousarray(dequantize(data, kind), dtype=numpy.float32)
        assert floats.shape == (ROWS, COLUMNS)
        out += numpy.array([kind, ROWS, COLUMNS, data.shape[1]], "<u4").tobytes()
        out += data.tobytes() + floats.astype("<f4").tobytes()
    with open(sys.argv[1], "wb") as file:
        file.write(gzip.compress(out, 9, mtime=0))


if __name__ == "__main__":
    main()
