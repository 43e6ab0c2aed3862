# SPDX-License-Identifier: Apache-2.0
"""The frame itself: order of the runs, ratios, spread, outputs, exit status."""
import io
import json
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import frame  # noqa: E402


def make(strict=False):
    out, err = io.StringIO(), io.StringIO()
    return frame.Frame("toy", out=out, err=err, strict=strict), out, err


def lines(out):
    return [json.loads(line) for line in out.getvalue().splitlines()]


def series(name, values, calls):
    values = iter(values)

    def run():
        calls.append(name)
        return {"rate": next(values)}
    return run


def test_pairs_run_in_turn_and_the_warm_up_does_not_count():
    bench, out, _ = make()
    calls = []
    bench.pairs(series("a", [1000, 20, 30, 40], calls), series("b", [1, 10, 10, 10], calls),
                {"rate": frame.Metric("1/s", goal=2)}, peer="other", n=3, threads=2)
    assert calls == ["a", "b"] * 4
    row, = lines(out)
    assert (row["ours"], row["theirs"], row["ratio"], row["runs"]) == (30, 10, 3, 3)
    assert row["spread"] == pytest.approx((4 - 2) / 3, rel=1e-3)
    assert row["args"] == {"threads": 2}
    assert (row["bench"], row["metric"], row["peer"], row["goal_ratio"]) == ("toy", "rate", "other", 2)
    assert 0 <= row["others_cpu"] <= 1


def test_the_ratio_is_of_neighbours_not_of_medians():
    bench, out, _ = make()
    # Both slow down together: every pair says 2.
    bench.pairs(series("a", [8, 4, 2], []), series("b", [4, 2, 1], []),
                {"rate": frame.Metric("1/s")}, peer="other", n=3, warm_up=0)
    row, = lines(out)
    assert (row["ratio"], row["spread"]) == (2, 0)


def test_of_times_the_smaller_is_better():
    bench, out, _ = make()
    bench.pairs(lambda: {"s": 2.0}, lambda: {"s": 5.0}, {"s": frame.Metric("s", smaller=True)},
                peer="other", n=1)
    assert lines(out)[0]["ratio"] == 2.5


@pytest.mark.parametrize("strict, ratio, status", [(True, 0.9, 1), (True, 1.1, 0), (False, 0.9, 0)])
def test_strict_fails_when_a_goal_is_missed(strict, ratio, status):
    bench, _, err = make(strict)
    bench.pairs(lambda: {"rate": ratio, "free": 1.0}, lambda: {"rate": 1.0, "free": 2.0},
                {"rate": frame.Metric("1/s", goal=1.0), "free": frame.Metric("1/s")},
                peer="other", n=1)
    assert bench.finish() == status
    assert ("below the goal" in err.getvalue()) == (ratio < 1)


def test_strict_comes_from_the_environment(monkeypatch):
    for value, strict in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("STRICT", value)
        assert frame.Frame("toy").strict is strict


def test_standard_output_has_json_alone():
    bench, out, err = make()
    bench.note("words")
    bench.pairs(lambda: {"rate": 1.0}, lambda: {"rate": 1.0}, {"rate": frame.Metric("1/s")},
                peer="other", n=1)
    bench.finish()
    assert len(lines(out)) == 1
    assert "words" in err.getvalue() and "CPUs of" in err.getvalue()


def test_no_pair_is_refused():
    bench, _, _ = make()
    with pytest.raises(ValueError):
        bench.pairs(dict, dict, {}, peer="other", n=0)


def test_own_work_does_not_count_as_others():
    others = frame.Others()
    total = 0
    for i in range(3_000_000):
        total += i
    own = frame._own_seconds() - others.own  # pylint: disable=protected-access
    assert own > 0.02
