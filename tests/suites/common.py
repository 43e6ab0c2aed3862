# SPDX-License-Identifier: Apache-2.0
"""What every suite stands on: run a command under a limit, count its verdicts, print one line for it.

Suites call run(), check_binaries(), pytest_file() and report(); run.py reads TOTAL. A test
program that dies without a summary counts as one failure. Nothing here decides by time but the limit
of a hung program.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOTAL = {"passed": 0, "failed": 0, "skipped": 0}


def report(name, passed, failed, skipped, seconds, output=""):
    TOTAL["passed"] += passed
    TOTAL["failed"] += failed
    TOTAL["skipped"] += skipped
    print(f"{'FAIL' if failed else 'ok':4} {name:44} {passed:4} passed {failed:3} failed "
          f"{skipped:3} skipped {seconds:7.1f} s", flush=True)
    if failed:
        print(output[-12000:], flush=True)
    for line in re.findall(r"^(?:SKIP|NOTE): .*$", output, re.M):
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


def check_binaries(variant, env=None, prefix=(), only=None, limit=600):
    """Runs build/@variant's Check binaries: verdicts from the summary line, skips from "SKIP: " lines."""
    found = 0
    for binary in sorted(glob.glob(f"{TOP}/build/{variant}/tests/unit/*")):
        name = os.path.basename(binary)
        if re.search(r"\.[od]$", name) or not os.access(binary, os.X_OK) or (only and name not in only):
            continue
        found += 1
        status, text, seconds = run([*prefix, binary], limit,
                                    {"CK_DEFAULT_TIMEOUT": "300", **(env or {})})
        checks = failed = 0
        for match in re.finditer(r"Checks: (\d+), Failures: (\d+), Errors: (\d+)", text):
            checks += int(match[1])
            failed += int(match[2]) + int(match[3])
        if (status != 0 and not failed) or not checks:
            failed += 1
            text += f"\nexit status {status}"
            checks += 1
        skipped = len(re.findall(r"^SKIP: ", text, re.M))
        report(f"unit/{variant}/{name}", max(checks - failed - skipped, 0), failed, skipped, seconds,
               text)
    if not found:
        report(f"unit/{variant}", 0, 1, 0, 0.0, f"no test programs: make VARIANT={variant} units")


def pytest_file(path, limit, env=None, name=None, arguments=()):
    """Runs one pytest file: verdicts from its JUnit file, lines "NOTE: ..." of its output shown."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as junit:
        status, text, seconds = run(
            [sys.executable if have_pytest() else "/usr/bin/python3", "-m", "pytest", "-q",
             "-x" if os.environ.get("FAIL_FAST") else "-q", "-rs", "-p", "no:cacheprovider",
             f"--junitxml={junit.name}", *arguments, path],
            limit, {"FABRICMGR_BIN": f"{TOP}/build/release/bin", "PYTHONDONTWRITEBYTECODE": "1",
                    **(env or {})})
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
        name = name or f"{os.path.basename(os.path.dirname(path))}/{os.path.basename(path)}"
        report(name, total - bad - skipped, bad, skipped, seconds, text)


def pytest_folder(folder, limit, env=None):
    for path in sorted(glob.glob(f"{TOP}/tests/{folder}/test_*.py")):
        pytest_file(path, limit, env)


def have_pytest():
    return subprocess.run([sys.executable, "-c", "import pytest"], stderr=subprocess.DEVNULL,
                          check=False).returncode == 0
