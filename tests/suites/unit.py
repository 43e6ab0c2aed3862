# SPDX-License-Identifier: Apache-2.0
"""The Check binaries of tests/unit, one suite for each build that they run in."""
import os

from suites.common import TOP, check_binaries, report, run

PROMPT = "A block is staged, filled in place and sealed; from then on it is mapped, never copied."


def release():
    check_binaries("release")


def asan():
    check_binaries("asan", {
        "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:detect_stack_use_after_return=1",
        "CK_FORK": os.environ.get("CK_FORK", "yes")},
        without=("model_reference",))  # minutes, of code that the other model tests run through


def clang():
    # The compiler changes how each function computes; how they are combined is tested by the others.
    check_binaries("clang", without=("mixes", "same_bits", "model_reference"))
    same_bits("clang", "release")


def same_bits(one, other):
    """Two compilers' engines give the same text and log probabilities, digit by digit."""
    model = os.environ.get("FABRICMGR_TEST_MODEL")
    bad, took, text = 0, 0.0, ""
    if not model:
        report(f"same bits: {one} and {other}", 0, 0, 1, 0.0, "SKIP: FABRICMGR_TEST_MODEL is not set")
        return
    isas = ("portable", "avx2", "avx512", "amx")
    for isa in isas:
        answers = []
        for variant in (one, other):
            status, output, seconds = run(
                [f"{TOP}/build/{variant}/bin/fabric-engine", "run", "-m", model, "--json", "--isa", isa,
                 "--pool-size", "64M", "-p", PROMPT, "-n", "6", "--logprobs", "4"], 300)
            took += seconds
            answers.append((status, output))
        if answers[0] != answers[1] or (answers[0][0] and "instruction set" not in answers[0][1]):
            bad += 1
            text += f"{isa}:\n{answers[0]}\n{answers[1]}\n"
    report(f"same bits: {one} and {other}", len(isas) - bad, bad, 0, took, text)
