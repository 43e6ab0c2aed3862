# SPDX-License-Identifier: Apache-2.0
"""The rules of the house: layers, style, words, and what the documents name (tests/house)."""
from suites.common import pytest_folder


def house():
    pytest_folder("house", 120)
