# SPDX-License-Identifier: Apache-2.0
"""Processes under AddressSanitizer, UBSan and LeakSanitizer; threads under ThreadSanitizer.

A report goes to a file of its own, and conftest.py fails the test in which one appears: so it counts
although the program was started again, or nobody read its output. A killed program says nothing, an
orderly end also tells of leaks.
"""
import concurrent.futures
import os
import tempfile

from suites.common import TOP, check_binaries, pytest_verdict, report

ASAN = "detect_leaks=1:detect_stack_use_after_return=1:abort_on_error=0:exitcode=99"
# Daemon and clients, Redis clients, workers and routers that die, a pool that is too small. The real
# model is the release build's business: it takes minutes here.
FILES = ("test_pool.py", "test_redis.py", "test_worker.py", "test_small_pool.py", "test_threads.py",
         "test_router.py")


def asan_file(name):
    with tempfile.TemporaryDirectory(prefix="fabricmgr-reports-") as folder:
        return pytest_verdict(f"{TOP}/tests/process/{name}", 900, {
            "FABRICMGR_BIN": f"{TOP}/build/asan/bin",
            "FABRICMGR_LIB": f"{TOP}/build/release/libfabricmgr.so",
            "FABRICMGR_REPORTS": folder,
            "ASAN_OPTIONS": f"{ASAN}:log_path={folder}/report",
            "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={folder}/report",
        }, f"asan/{name}")


def asan():
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for verdict in pool.map(asan_file, FILES):
            report(*verdict)


def tsan():
    """The units that `make VARIANT=tsan tsan-units` builds."""
    check_binaries("tsan", {"TSAN_OPTIONS": "exitcode=66:second_deadlock_stack=1", "MIXES": "10"})
