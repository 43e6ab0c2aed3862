# SPDX-License-Identifier: Apache-2.0
"""Each benchmark that needs no peer, short and on a tiny model: it runs, and says all that it must. A
program whose output changed, and which a benchmark waits for, is found here. No test looks at a speed.
"""
import json
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, f"{TOP}/tests/process")

import tiny_gguf  # noqa: E402

SHORT = {
    "demo": ("--pairs", "1", "--prompt", "1600", "--answer", "100", "--threads", "1", "--ids", "10", "200"),
    "evict": ("--traces", "synthetic", "--blocks", "1000"),
    "memory": ("--operations", "200000"),
    "put_get": ("--pairs", "1"),
}
FIELDS = {"bench", "metric", "unit", "ours", "peer", "theirs", "ratio", "goal_ratio", "runs", "spread",
          "rung", "args"}


@pytest.mark.parametrize("name", SHORT)
def test_a_short_run_says_what_it_measured(name, tmp_path):
    model = tiny_gguf.write(f"{tmp_path}/tiny.gguf", layers=4, dim=256, heads=4)
    out = subprocess.run([sys.executable, "-B", f"{HERE}/{name}.py", "--bin",
                          os.environ["FABRICMGR_BIN"], "--model", model, *SHORT[name]],
                         capture_output=True, text=True, check=False, timeout=300, cwd=TOP)
    assert out.returncode == 0, out.stderr
    rows = [json.loads(line) for line in out.stdout.splitlines()]
    assert rows, out.stderr
    for row in rows:
        assert FIELDS <= row.keys() and row["bench"] == name
        assert row["ratio"] is None or row["ratio"] > 0
    if name == "memory":  # no speeds: bytes
        block, daemon = rows
        assert block["ours"] <= 160 and daemon["args"]["hits"] and daemon["args"]["removed"]
        assert daemon["ours"] - daemon["theirs"] <= 16 * 4096, "the daemon's own memory grows"
