# SPDX-License-Identifier: Apache-2.0
"""`fabric-engine bench`: what it counts, and what it refuses. No test looks at a speed."""
import json
import os
import subprocess

import pytest

from conftest import BIN


def bench(model, *arguments):
    return subprocess.run([f"{BIN}/fabric-engine", "bench", "-m", model, "--pool-size", "16M",
                           *arguments], capture_output=True, text=True, check=False, timeout=120)


def test_json_says_what_ran(tiny_model):
    out = bench(tiny_model, "--json", "-t", "2", "-p", "16,48", "-n", "8", "-d", "0,32", "-b", "1,3",
                "-r", "3")
    assert out.returncode == 0, out.stderr
    rows = [json.loads(line) for line in out.stdout.splitlines()]
    assert [(row["test"], row["depth"], row["batch"]) for row in rows] == [
        (test, depth, batch) for depth in (0, 32)
        for test, batch in (("pp16", 1), ("pp48", 1), ("tg8", 1), ("tg8", 3))]
    for row in rows:
        assert row["threads"] == 2 and row["repeats"] == 3 and len(row["sorted"]) == 3
        assert row["sorted"] == sorted(row["sorted"]) and row["tokens_per_s"] == row["sorted"][1] > 0
        assert ("read_limit_bytes_per_s" in row) == row["test"].startswith("tg")
        assert ("product_macs_per_s" in row) == (row["test"].startswith("pp")
                                                 and row["isa"] in ("avx512", "amx"))
        shares = row["time_shares"]
        assert 0 < shares["attention"] < 1 and 0 < sum(shares.values()) <= 1


def test_table_has_two_lines_a_test(tiny_model):
    out = bench(tiny_model, "-p", "16", "-n", "4", "-r", "1")
    assert out.returncode == 0, out.stderr
    lines = out.stdout.splitlines()[2:]
    assert [line.split()[0] for line in lines[::2]] == ["pp16", "tg4"]
    assert all(line.endswith(" %") and " rest " in line for line in lines[1::2])


def test_json_says_how_many_threads_computed(tiny_model):
    out = bench(tiny_model, "--json", "-p", "16", "-n", "0", "-r", "1")
    assert json.loads(out.stdout)["threads"] == min(len(os.sched_getaffinity(0)), 64), out.stderr


def test_zero_leaves_tests_out(tiny_model):
    out = bench(tiny_model, "--json", "-p", "0", "-n", "4", "-r", "1")
    assert out.returncode == 0, out.stderr
    assert [json.loads(line)["test"] for line in out.stdout.splitlines()] == ["tg4"]


@pytest.mark.parametrize("arguments, status, words", [
    (("-d", "17"), 2, "multiple of 16"),
    (("-p", "0", "-n", "0"), 2, "leave no test"),
    (("--pool-socket", "/none"), 2, "--pool-size with --pool-socket"),
    (("-d", "16,999984"), 1, "context ends at"),
    (("-p", "512,x"), 2, "numbers from"),
    (("-d", ""), 2, "numbers from"),
    (("-b", "0"), 2, "give a --depth and a --batch"),
    (("-r", "0"), 2, "--repeats"),
    (("surplus",), 2, "only flags"),
])
def test_what_it_refuses(tiny_model, arguments, status, words):
    out = bench(tiny_model, *arguments)
    assert out.returncode == status and words in out.stderr, out.stderr
