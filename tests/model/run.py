#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Searches lease.pml with spin: as the code is, and with each planted fault, which must be found.

Prints a line for each variant: its verdict, the states that were explored, the seconds. A variant
passes when its search is complete and finds nothing; a fault is found when an assertion fails (a
deadlock or a search that gave up is neither). Exit status 0: all verdicts are the expected ones.
"""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import time

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lease.pml")
ROUNDS = ["-DROUNDS=2", "-DPASSES=1"]
KILLED = ["-DKILL", "-DROUNDS=1", "-DPASSES=1"]
BOTH = ["in order", "weak"]

# What is searched, where, and whether it must hold. "in order" is x86's TSO; "weak" is C11's and
# arm64's, and includes the other. The longest first. DROP, SEAL and WORDS need stores that overtake
# each other: x86 keeps them in order, so there the same faults must not be found.
VARIANTS = [
    ("two readers", ["weak"], ["-DREADERS=2", "-DROUNDS=1", "-DPASSES=1"], True),
    ("one reader, two evictions", ["weak"], ["-DROUNDS=2", "-DPASSES=2"], True),
    ("one reader, killed anywhere", ["weak"], ["-DKILL", "-DROUNDS=2", "-DPASSES=1"], True),
    ("one reader", ["in order"], ROUNDS, True),
    ("NO_READER_FENCE", BOTH, ROUNDS, False),
    ("NO_EVICTOR_FENCE", BOTH, ROUNDS, False),
    ("NO_RECHECK", BOTH, ROUNDS, False),
    ("SCAN_BEFORE_MARK", BOTH, ROUNDS, False),
    ("SAME_GENERATION", BOTH, ROUNDS, False),
    ("FORGETS_THE_LIVING", BOTH, ROUNDS, False),
    ("NO_CLEAN_UP", BOTH, KILLED, False),
    ("LEASE_WORDS_RELAXED", ["weak"], ROUNDS, False),
    ("LEASE_WORDS_RELAXED", ["in order"], ROUNDS, True),
    ("DROP_RELAXED", ["weak"], ROUNDS, False),
    ("DROP_RELAXED", ["in order"], ROUNDS, True),
    ("SEAL_RELAXED", ["weak"], ROUNDS, False),
    ("SEAL_RELAXED", ["in order"], ROUNDS, True),
]


def search(name, memory, flags, holds):
    """Returns (verdict is the expected one, line to print)."""
    start = time.monotonic()
    flags = flags + (["-DWEAK"] if memory == "weak" else [])
    if name.isupper():
        flags = flags + [f"-DFAULT_{name}"]
    with tempfile.TemporaryDirectory() as folder:
        output = ""
        # The faults fall in a few thousand states: compiling well would take longer than searching.
        for command in (["spin", "-a", *flags, MODEL],
                        ["gcc", "-O2" if holds else "-O0", "-w", "-DSAFETY", "-DCOLLAPSE",
                         "-DMEMLIM=2000", "-o", "pan", "pan.c"],
                        ["./pan", "-m100000", "-w22"]):
            done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=False,
                                  stderr=subprocess.STDOUT, text=True)
            output = done.stdout
            if done.returncode:
                break
    errors = re.search(r"errors: (\d+)", output)
    states = re.search(r"(\d+) states, stored", output)
    violated = re.search(r"assertion violated (.*) \(at depth", output)
    gave_up = re.search(r"max search depth too small|Search not completed|out of memory", output)
    if errors and errors[1] == "0" and not gave_up:
        found = "holds"
    elif violated:
        found = f"fails: {violated[1]}"
    else:
        found = "no verdict:\n" + output
    good = found.startswith("holds" if holds else "fails")
    return good, (f"{'ok  ' if good else 'FAIL'} {name:27} {memory:9} {states[1] if states else 0:>8} states "
                  f"{time.monotonic() - start:5.1f} s  {found}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="variants with this in their name")
    only = parser.parse_args().only
    jobs = [(name, memory, flags, holds) for name, memories, flags, holds in VARIANTS
            for memory in memories if not only or only in name]
    all_good = bool(jobs)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for good, line in pool.map(lambda job: search(*job), jobs):
            print(line, flush=True)
            all_good = all_good and good
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
