#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the suites, prints the time of each, and ends with "N passed, N failed, N skipped".

A Check binary reports by its summary line, a skip by a line "SKIP: test: reason"; pytest by its
JUnit file. A suite that dies without a summary counts as one failure. Nothing here decides by time
but the limit of a hung suite.
"""
import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOTAL = {"passed": 0, "failed": 0, "skipped": 0}


def report(name, passed, failed, skipped, seconds, output=""):
    TOTAL["passed"] += passed
    TOTAL["failed"] += failed
    TOTAL["skipped"] += skipped
    print(f"{'FAIL' if failed else 'ok':4} {name:44} {passed:4} passed {failed:3} failed "
          f"{skipped:3} skipped {seconds:7.1f} s", flush=True)
    if failed:
        print(output[-12000:], flush=True)
    for line in re.findall(r"^SKIP: .*$", output, re.M):
        print(f"     {line}", flush=True)


def run(command, limit, env=None):
    """Returns (exit status or None when the limit passed, output, seconds)."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=TOP,
                                   env={**os.environ, **(env or {})}, start_new_session=True)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            status = None
        out.seek(0)
        text = out.read().decode("utf-8", "replace")
    if status is None:
        text += f"\nstopped: longer than {limit} s"
    return status, text, time.monotonic() - start


def check_suite(variant):
    for binary in sorted(glob.glob(f"{TOP}/build/{variant}/tests/unit/*")):
        if binary.endswith(".o") or binary.endswith(".d") or not os.access(binary, os.X_OK):
            continue
        env = {"CK_DEFAULT_TIMEOUT": "300"}
        if variant == "asan":
            env["ASAN_OPTIONS"] = "detect_leaks=1:abort_on_error=0:detect_stack_use_after_return=1"
            env["CK_FORK"] = os.environ.get("CK_FORK", "yes")
        status, text, seconds = run([binary], 600, env)
        checks = failed = 0
        for match in re.finditer(r"Checks: (\d+), Failures: (\d+), Errors: (\d+)", text):
            checks += int(match[1])
            failed += int(match[2]) + int(match[3])
        if (status != 0 and not failed) or not checks:
            failed += 1
            text += f"\nexit status {status}"
            checks += 1
        skipped = len(re.findall(r"^SKIP: ", text, re.M))
        report(f"unit/{variant}/{os.path.basename(binary)}", max(checks - failed - skipped, 0),
               failed, skipped, seconds, text)


def pytest_suite(folder, limit):
    for path in sorted(glob.glob(f"{TOP}/tests/{folder}/test_*.py")):
        with tempfile.NamedTemporaryFile(suffix=".xml") as junit:
            status, text, seconds = run(
                [sys.executable if have_pytest() else "/usr/bin/python3", "-m", "pytest", "-q",
                 "-x" if os.environ.get("FAIL_FAST") else "-q", "-rs", "-p", "no:cacheprovider",
                 f"--junitxml={junit.name}", path],
                limit, {"FABRICMGR_BIN": f"{TOP}/build/release/bin", "PYTHONDONTWRITEBYTECODE": "1"})
            name = f"{folder}/{os.path.basename(path)}"
            try:
                root = xml.parse(junit.name).getroot()
                suite = root if root.tag == "testsuite" else root.find("testsuite")
                total, bad, skipped = (int(suite.get(k)) for k in ("tests", "failures", "skipped"))
                bad += int(suite.get("errors"))
            except (xml.ParseError, AttributeError, TypeError):
                total, bad, skipped = 1, 1, 0
            if status not in (0, 1) or (status == 1 and not bad) or not total:
                bad, total = bad + 1, total + 1
            text = re.sub(r"^SKIPPED", "SKIP: SKIPPED", text, flags=re.M)
            report(name, total - bad - skipped, bad, skipped, seconds, text)


def have_pytest():
    return subprocess.run([sys.executable, "-c", "import pytest"], stderr=subprocess.DEVNULL,
                          check=False).returncode == 0


def fuzz_suite():
    seconds = int(os.environ.get("FUZZ_SECONDS", "10"))
    for source in sorted(glob.glob(f"{TOP}/tests/fuzz/fuzz_*.c")):
        name = os.path.basename(source)[:-2]
        with open(source, encoding="utf-8") as file:
            text = file.read()
        match = re.search(r"FUZZ_SOURCES:(.*)", text)
        libs = re.search(r"FUZZ_LIBS:(.*)", text)
        binary = f"{TOP}/build/fuzz/{name}"
        os.makedirs(os.path.dirname(binary), exist_ok=True)
        build = ["clang-14", "-std=gnu11", "-O1", "-g", "-D_GNU_SOURCE", '-DFM_VERSION="fuzz"',
                 "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all",
                 "-ffp-contract=off",
                 "-Ilibfabricmgr/include", "-Ikmod/uapi", "-Ilibfabricmgr", "-Ikernels", "-Iengine",
                 source, *(match[1].split() if match else []), "-o", binary,
                 *(libs[1].split() if libs else [])]
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
        report(f"fuzz/{name} ({units[1] if units else 0} inputs)", int(status == 0),
               int(status != 0), 0, took, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="unit, asan, process, fuzz")
    wanted = parser.parse_args().only or ["unit", "asan", "process", "fuzz"]
    if "unit" in wanted:
        check_suite("release")
    if "asan" in wanted:
        check_suite("asan")
    if "process" in wanted:
        pytest_suite("process", 900)
    if "fuzz" in wanted:
        fuzz_suite()
    print(f"{TOTAL['passed']} passed, {TOTAL['failed']} failed, {TOTAL['skipped']} skipped")
    return 1 if TOTAL["failed"] or not TOTAL["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
