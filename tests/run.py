#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the suites in the order of SUITES and ends with the time of each and "N passed, N failed, N skipped".

A suite is a function of tests/suites that reports through suites.common; a new suite is one more
line below. What a suite runs is built before (see `check` in the Makefile).
"""
import argparse
import sys
import time

sys.dont_write_bytecode = True

from suites import analysis, common, fuzz, house, kills, model, plants, process, sanitizers, unit  # noqa: E402

SUITES = {
    "house": house.house,
    "analysis": analysis.analysis,
    "unit": unit.release,
    "plants": plants.plants,
    "asan": unit.asan,
    "clang": unit.clang,
    "tsan": sanitizers.tsan,
    "asan-process": sanitizers.asan,
    "process": process.release,
    "bench": process.bench,
    "kills": kills.kills,
    "model": model.model,
    "fuzz": fuzz.fuzz,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=SUITES, help="this suite (may be repeated)")
    wanted = parser.parse_args().only or SUITES
    times = []
    for name, suite in SUITES.items():
        if name in wanted:
            start = time.monotonic()
            suite()
            times.append(f"{name} {time.monotonic() - start:.0f} s")
    for name, lines in common.FAILURES:
        print("\n  ".join([f"failed: {name}", *lines]))
    print("suites: " + ", ".join(times))
    total = common.TOTAL
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
