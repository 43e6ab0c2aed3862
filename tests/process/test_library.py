# SPDX-License-Identifier: Apache-2.0
"""The library's header in another language: a C++ program of every kind of call builds without a warning and runs."""
import os
import subprocess

import pytest

from conftest import TOP

LIB = os.environ.get("FABRICMGR_LIB", f"{TOP}/build/release/libfabricmgr.so")


@pytest.mark.parametrize("standard", ["c++11", "c++20"])
def test_cpp(tmp_path, standard):
    folder = os.path.dirname(LIB)
    subprocess.run(["g++", f"-std={standard}", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread",
                    f"-I{TOP}/libfabricmgr/include", f"{TOP}/tests/process/library.cc", LIB,
                    "-o", f"{tmp_path}/program"], check=True, timeout=300)
    # By its soname, as it is installed.
    os.symlink(os.path.abspath(LIB), f"{tmp_path}/libfabricmgr.so.0")
    done = subprocess.run([f"{tmp_path}/program"], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "LD_LIBRARY_PATH": f"{tmp_path}:{folder}"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all of it, from C++\n"
