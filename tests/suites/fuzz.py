# SPDX-License-Identifier: Apache-2.0
"""The libFuzzer targets of tests/fuzz, FUZZ_SECONDS each, on their seeds and what earlier runs kept.

A target's source names what it links ("FUZZ_SOURCES:", patterns; "FUZZ_LIBS:", "FUZZ_FLAGS:"); it is
built here by clang.
"""
import concurrent.futures
import glob
import os
import re

from suites.common import TOP, report, run


def fuzz():
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for verdict in pool.map(fuzz_target, sorted(glob.glob(f"{TOP}/tests/fuzz/fuzz_*.c"))):
            report(*verdict)


def fuzz_target(source):
    seconds = int(os.environ.get("FUZZ_SECONDS", "10"))
    name = os.path.basename(source)[:-2]
    with open(source, encoding="utf-8") as file:
        text = file.read()
    sources, libs, flags = (
        [word for found in re.findall(rf"FUZZ_{what}:(.*)", text) for word in found.split()]
        for what in ("SOURCES", "LIBS", "FLAGS"))
    sources = [path for pattern in sources for path in sorted(glob.glob(f"{TOP}/{pattern}"))]
    binary = f"{TOP}/build/fuzz/{name}"
    os.makedirs(os.path.dirname(binary), exist_ok=True)
    build = ["clang-14", "-std=gnu11", "-O1", "-g", "-D_GNU_SOURCE", '-DFM_VERSION="fuzz"',
             "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all",
             "-ffp-contract=off",
             "-Ilibfabricmgr/include", "-Ikmod/uapi", "-Ilibfabricmgr", "-Ikernels", "-Iengine",
             *flags, source, *sources, "-o", binary, *libs]
    status, text, took = run(build, 300)
    if status == 0:
        work = f"{TOP}/build/fuzz/{name}.corpus"
        seeds = f"{TOP}/tests/fuzz/corpus/{name[5:]}"
        os.makedirs(work, exist_ok=True)
        status, text, took = run(
            [binary, f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048",
             f"-artifact_prefix={TOP}/build/fuzz/", "-print_final_stats=1", work,
             *([seeds] if os.path.isdir(seeds) else [])], seconds + 120)
    units = re.search(r"number_of_executed_units: (\d+)", text)
    return (f"fuzz/{name} ({units[1] if units else 0} inputs)", int(status == 0), int(status != 0), 0,
            took, text)
