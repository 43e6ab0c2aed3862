# SPDX-License-Identifier: Apache-2.0
"""The crash tests of tests/kills: programs with kill points (VARIANT=kill), killed again and again."""
from suites.common import pytest_folder


def kills():
    pytest_folder("kills", 3600)
