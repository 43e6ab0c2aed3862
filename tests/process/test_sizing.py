# SPDX-License-Identifier: Apache-2.0
"""The tables of Documentation/sizing.md are what `make sizing` prints: those that cost no time, again."""
import re
import subprocess
import sys

from conftest import BIN, TOP


def page():
    with open(f"{TOP}/Documentation/sizing.md", encoding="utf-8") as file:
        return file.read()


def sizing(*arguments):
    out = subprocess.run([sys.executable, "-B", f"{TOP}/tools/sizing.py", "--bin", BIN, *arguments], text=True,
                         capture_output=True, check=False, timeout=300)
    assert out.returncode == 0, out.stderr
    return [line for line in out.stdout.splitlines() if line.startswith("|")]


def test_the_table_of_blocks():
    lines = sizing("--only", "blocks")
    assert len(lines) > 5 and "\n".join(lines) in page()


def test_a_row_of_hit_rates():
    lines = sizing("--only", "hit-rates", "--traces", "synthetic", "--tokens", "3000000")
    assert len(lines) == 3
    found = [line for line in page().splitlines() if line.startswith("| synthetic | 3.0 M |")]
    numbers = [[float(x) for x in re.findall(r"([\d.]+) %", line)] for line in (lines[-1], *found)]
    # A change of the policy moves them: then the page is to be printed anew.
    assert all(abs(a - b) < 1 for a, b in zip(*numbers)) and len(numbers[0]) == 3, numbers


def test_what_an_entry_costs():
    shown = float(re.search(r"as the start counts it \| (\d+) B", page())[1])
    out = subprocess.run([f"{BIN}/fabricmgrd", "--config", "/dev/null", "--check", "--size", "16M", "--entries", "1000000"],
                         text=True, capture_output=True, check=True).stdout
    assert abs(float(re.search(r"tables ([\d.]+) MiB", out)[1]) * (1 << 20) / 1e6 / shown - 1) < 0.1
