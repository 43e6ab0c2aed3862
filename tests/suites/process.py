# SPDX-License-Identifier: Apache-2.0
"""The pytest files: tests/process, the built programs as a person runs them, and the benchmarks' frame."""
from suites.common import pytest_folder


def release():
    pytest_folder("process", 1200, at_a_time=2)


def bench():
    pytest_folder("bench", 60)
