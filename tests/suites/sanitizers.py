# SPDX-License-Identifier: Apache-2.0
"""Processes under AddressSanitizer, UBSan and LeakSanitizer; threads under ThreadSanitizer.

A report goes to a file of its own, and conftest.py fails the test in which one appears: so it counts
although the program was started again, or nobody read its output. A killed program says nothing, an
orderly end also tells of leaks.
"""
import concurrent.futures
import os
import tempfile

from suites.common import TOP, check_binaries, pytest_verdict, report, run_unit

ASAN = "detect_leaks=1:detect_stack_use_after_return=1:abort_on_error=0:exitcode=99"
# Daemon and clients, Redis clients, workers and routers that die, a pool that is too small. The real
# model is the release build's business: it takes minutes here.
FILES = ("test_pool.py", "test_redis.py", "test_worker.py", "test_small_pool.py", "test_threads.py",
         "test_router.py")


# Threads of one process: a daemon with its Redis front end and metrics, workers that compute, routers.
THREADED = ("test_redis.py", "test_metrics.py", "test_worker.py", "test_small_pool.py",
            "test_threads.py")


def sanitized(variant, name, options):
    """@options: a format with {log}, for the sanitizer's environment variables."""
    with tempfile.TemporaryDirectory(prefix="fabricmgr-reports-") as folder:
        return pytest_verdict(f"{TOP}/tests/process/{name}", 900, {
            "FABRICMGR_BIN": f"{TOP}/build/{variant}/bin",
            "FABRICMGR_LIB": f"{TOP}/build/release/libfabricmgr.so",
            "FABRICMGR_REPORTS": folder,
            **{key: value.format(log=f"log_path={folder}/report") for key, value in options.items()},
        }, f"{variant}/{name}")


def side_by_side(variant, names, options):
    """As many files at a time as there are processors."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for verdict in pool.map(lambda name: sanitized(variant, name, options), names):
            report(*verdict)


def asan():
    side_by_side("asan", FILES, {"ASAN_OPTIONS": f"{ASAN}:{{log}}",
                                 "UBSAN_OPTIONS": "print_stacktrace=1:{log}"})


def tsan():
    """The units that `make VARIANT=tsan tsan-units` builds, a planted race, and processes."""
    options = "exitcode=66:second_deadlock_stack=1"
    check_binaries("tsan", {"TSAN_OPTIONS": options})
    race = f"{TOP}/build/tsan/plants/UNORDERED_DROP"
    if not os.path.exists(race):
        report("plants/UNORDERED_DROP", 0, 1, 0, 0.0, "no test program: make VARIANT=tsan tsan-units")
        return
    _, text, seconds = run_unit([race], 300, {"TSAN_OPTIONS": options, "CK_RUN_CASE": "reuse"})
    is_found = "data race" in text
    report("plants/UNORDERED_DROP", int(is_found), int(not is_found), 0, seconds,
           f"the race was not found\n{text}")
    side_by_side("tsan", THREADED, {"TSAN_OPTIONS": f"{options}:{{log}}"})
