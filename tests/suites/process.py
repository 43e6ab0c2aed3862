# SPDX-License-Identifier: Apache-2.0
"""The pytest files of tests/process: the built programs as a person runs them."""
from suites.common import pytest_folder


def release():
    pytest_folder("process", 900)
