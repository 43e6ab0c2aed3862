# SPDX-License-Identifier: Apache-2.0
"""The exhaustive search of tests/model: each variant of the lease protocol is one verdict."""
import re
import sys

from suites.common import TOP, report, run


def model():
    status, text, seconds = run([sys.executable, f"{TOP}/tests/model/run.py"], 600)
    passed, failed = len(re.findall(r"^ok ", text, re.M)), len(re.findall(r"^FAIL ", text, re.M))
    if status != 0 and not failed:
        failed += 1
    states = sum(int(n) for n in re.findall(r" (\d+) states", text))
    report(f"model/lease ({states} states)", passed, failed, 0, seconds, text)
