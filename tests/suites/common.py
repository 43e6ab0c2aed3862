# SPDX-License-Identifier: Apache-2.0
"""What every suite stands on: run a command under a limit, count its verdicts, print one line for it.

Suites call run(), check_binaries(), pytest_file() and report(); run.py reads TOTAL. A test
program that dies without a summary counts as one failure. Nothing here decides by time but the limit
of a hung program.
"""
import concurrent.futures
import glob
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LONG = ("same_bits", "mixes", "model", "model_reference", "kernels")
LONG_FILES = ("test_same_bits.py", "test_engine.py", "test_router.py", "test_hostile_files.py",
              "test_out_of_memory.py")
TOTAL = {"passed": 0, "failed": 0, "skipped": 0}


FAILURES = []  # (what failed, its complaints), told once more in the end


def complaints(output, n=6, width=600):
    """The lines of @output that say what is wrong: of pytest's summary, of Check, of a sanitizer."""
    found = re.findall(r"^FAILED .*$|^.*:[FE]:.*$|^.*(?:ERROR|WARNING): \w+Sanitizer.*$|^.*runtime error:.*$",
                       output, re.M) or output.strip().splitlines()[-3:]
    return [line[:width] for line in found[:n]]


def report(name, passed, failed, skipped, seconds, output=""):
    TOTAL["passed"] += passed
    TOTAL["failed"] += failed
    TOTAL["skipped"] += skipped
    print(f"{'FAIL' if failed else 'ok':4} {name:44} {passed:4} passed {failed:3} failed "
          f"{skipped:3} skipped {seconds:7.1f} s", flush=True)
    if failed:
        print(output[-12000:], flush=True)
        FAILURES.append((name, complaints(output)))
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


def run_unit(command, limit, env=None):
    """run() with a TMPDIR of its own: what a killed test leaves there goes with it."""
    with tempfile.TemporaryDirectory(prefix="fabricmgr-units-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        return run(command, limit, {"TMPDIR": folder, **(env or {})})


def check_binary(binary, variant, env, prefix, limit):
    """Runs one Check binary: verdicts from its summary line, skips from its "SKIP: " lines."""
    status, text, seconds = run_unit([*prefix, binary], limit, {"CK_DEFAULT_TIMEOUT": "300", **(env or {})})
    checks = failed = 0
    for match in re.finditer(r"Checks: (\d+), Failures: (\d+), Errors: (\d+)", text):
        checks += int(match[1])
        failed += int(match[2]) + int(match[3])
    if (status != 0 and not failed) or not checks:
        failed += 1
        text += f"\nexit status {status}"
        checks += 1
    skipped = len(re.findall(r"^SKIP: ", text, re.M))
    return (f"unit/{variant}/{os.path.basename(binary)}", max(checks - failed - skipped, 0), failed,
            skipped, seconds, text)


def check_binaries(variant, env=None, prefix=(), only=None, without=(), limit=900):
    """Runs build/@variant's Check binaries, as many at a time as there are processors."""
    binaries = [path for path in sorted(glob.glob(f"{TOP}/build/{variant}/tests/unit/*"))
                if not re.search(r"\.[od]$", path) and os.access(path, os.X_OK)
                and (not only or os.path.basename(path) in only)
                and os.path.basename(path) not in without]
    # The long ones first, so that no processor waits for them at the end.
    binaries.sort(key=lambda path: os.path.basename(path) not in LONG)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for verdict in pool.map(lambda path: check_binary(path, variant, env, prefix, limit), binaries):
            report(*verdict)
    if not binaries:
        report(f"unit/{variant}", 0, 1, 0, 0.0, f"no test programs: make VARIANT={variant} units")


def pytest_verdict(path, limit, env=None, name=None, arguments=()):
    """What report() takes of one pytest file: verdicts from its JUnit file; "NOTE: ..." lines are shown."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as junit:
        status, text, seconds = run(
            [sys.executable if have_pytest() else "/usr/bin/python3", "-m", "pytest", "-q",
             "-x" if os.environ.get("FAIL_FAST") else "-q", "-rfEs", "-p", "no:cacheprovider",
             f"--junitxml={junit.name}", *arguments, path],
            limit, {"FABRICMGR_BIN": f"{TOP}/build/release/bin", "PYTHONDONTWRITEBYTECODE": "1",
                    "COLUMNS": "400", **(env or {})})
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
        return name, total - bad - skipped, bad, skipped, seconds, text


def pytest_file(path, limit, env=None, name=None, arguments=()):
    """Runs one pytest file and reports it."""
    report(*pytest_verdict(path, limit, env, name, arguments))


def pytest_folder(folder, limit, env=None, at_a_time=1):
    """Runs a folder's pytest files, @at_a_time together; those that take long begin."""
    paths = sorted(glob.glob(f"{TOP}/tests/{folder}/test_*.py"))
    paths.sort(key=lambda path: os.path.basename(path) not in LONG_FILES)
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        for verdict in pool.map(lambda path: pytest_verdict(path, limit, env), paths):
            report(*verdict)


def have_pytest():
    return subprocess.run([sys.executable, "-c", "import pytest"], stderr=subprocess.DEVNULL,
                          check=False).returncode == 0
