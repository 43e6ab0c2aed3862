# SPDX-License-Identifier: Apache-2.0
"""The Check binaries of tests/unit, one suite for each build that they run in."""
import os

from suites.common import check_binaries


def release():
    check_binaries("release")


def asan():
    check_binaries("asan", {
        "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:detect_stack_use_after_return=1",
        "CK_FORK": os.environ.get("CK_FORK", "yes")})
