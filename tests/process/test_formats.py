# SPDX-License-Identifier: Apache-2.0
"""Dequantised weights against the `gguf` package itself, on fresh random blocks.

The packages of tests/data/gguf-requirements.txt are installed into build/venv; where PyPI cannot be
reached, the test is skipped and says so. GOLDEN_SEED repeats a run."""
import os
import random
import subprocess

import pytest

from conftest import TOP

DATA = f"{TOP}/tests/data"
PYTHON = f"{TOP}/build/venv/bin/python"


def said(command, limit):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=limit, check=False, cwd=TOP)
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def packages():
    if not os.access(PYTHON, os.X_OK):
        status, text = said(["python3", "-m", "venv", f"{TOP}/build/venv"], 120)
        assert status == 0, text
    status, text = said([PYTHON, "-m", "pip", "--disable-pip-version-check", "install", "-q",
                         "--retries", "1", "--timeout", "20", "-r", f"{DATA}/gguf-requirements.txt"], 300)
    if status:
        pytest.skip(f"no comparison with the gguf package: pip failed: {text.strip()[-300:]}")


def test_fresh_blocks_equal_the_package(packages, tmp_path):
    seed = os.environ.get("GOLDEN_SEED", str(random.randrange(1 << 32)))
    path = str(tmp_path / "golden.bin.gz")
    status, text = said([PYTHON, f"{DATA}/make_gguf_golden.py", path, seed], 120)
    assert status == 0, text
    status, text = said(["env", f"FABRICMGR_GGUF_GOLDEN={path}",
                         f"{TOP}/build/release/tests/unit/dequantise"], 120)
    assert status == 0, f"GOLDEN_SEED={seed}: {text}"


def test_the_committed_blocks_are_the_packages(packages, tmp_path):
    """What the unit test compares with can be made again."""
    path = str(tmp_path / "golden.bin.gz")
    status, text = said([PYTHON, f"{DATA}/make_gguf_golden.py", path], 120)
    assert status == 0, text
    made, kept = (subprocess.run(["gzip", "-dc", name], stdout=subprocess.PIPE, check=True).stdout
                  for name in (path, f"{DATA}/gguf-dequantised.bin.gz"))
    assert made == kept
