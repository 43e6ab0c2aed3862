# SPDX-License-Identifier: Apache-2.0
"""Planted faults: tests/unit/test_mixes.c with one object built with -DFM_PLANT_NAME must fail.

The Makefile's PLANTS names them and what they are planted in: CHUNK_DEPENDENT_SUM (a product of the
portable C adds in another order when it has more than one token), STALE_BLOCK (what a block held
before counts as computed), KEY_WITHOUT_PREFIX (a block's key depends on its own tokens alone).
"""
import glob
import os

from suites.common import TOP, report, run_unit


def plants():
    binaries = [path for path in sorted(glob.glob(f"{TOP}/build/release/plants/*"))
                if not path.endswith(".o")]
    if not binaries:
        report("plants", 0, 1, 0, 0.0, "no test programs: make plants")
    for binary in binaries:
        name = os.path.basename(binary)
        isa = {"MIX_ISA": "portable"} if name == "CHUNK_DEPENDENT_SUM" else {}
        status, text, seconds = run_unit([binary], 600, {"MIXES": "40", "MIX_SEED": "1", **isa})
        is_found = status == 1 and "the logits differ" in text
        report(f"plants/{name}", int(is_found), int(not is_found), 0, seconds,
               f"the fault was not found\n{text}")
