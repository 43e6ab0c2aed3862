# SPDX-License-Identifier: Apache-2.0
"""What one tenant can learn of another's cache: what calls answer, what counters say, and how long calls take.

What is answered decides by default; ISOLATION_PROBES=10000 (make check-long) judges the times, too: the area under
the ROC curve of an attacker that takes longer (or shorter) for cached, by chance 0.5.
"""
import json
import os
import subprocess

import pytest

from conftest import BIN
from test_tenants import Node, folder  # pylint: disable=unused-import

PROBES = int(os.environ.get("ISOLATION_PROBES", "0"))
PROBER = os.path.join(os.path.dirname(BIN), "tests", "hit_timing")
MEASURES = ("match", "acquire", "get", "put")

POOLS = """
[pool]
socket = {folder}/pool.sock
size = 16M
memory = memfd
[metrics]
listen = 127.0.0.1:0
[tenant victim]
users = 5001
max = 32M
[tenant attacker]
users = 5002
max = 32M
[group shared]
size = 32M
memory = memfd
[tenant host]
group = shared
users = 5001
[tenant guest]
group = shared
users = 5002
"""


def probe(node, victim, attacker, probes=None):
    places = [word for group, tenant in (victim, attacker) for word in (node.socket(group), tenant)]
    out = subprocess.run([PROBER, *places, str(probes or PROBES or 1000), "1"], capture_output=True, text=True,
                         check=False, timeout=600)
    assert out.returncode == 0, out.stderr
    found = json.loads(out.stdout)
    print(f"NOTE: {attacker[1]} asks for what {victim[1]} has cached: " +
          ", ".join(f"AUC {name} {found[name]['auc']:.4f}" for name in MEASURES))
    return found


def distance(found):
    """How far the best of its measures is from chance."""
    return max(abs(found[name]["auc"] - 0.5) for name in MEASURES)


@pytest.fixture
def node(system, folder):  # pylint: disable=redefined-outer-name
    return Node(system, folder, POOLS)


@pytest.mark.parametrize("victim, attacker", ((("victim", "victim"), ("attacker", "attacker")),
                                              (("attacker", "attacker"), ("victim", "victim"))))
def test_another_group_learns_nothing(node, victim, attacker):
    found = probe(node, victim, attacker)
    for name in MEASURES:
        assert found[name]["told_of_cached"] == found[name]["told_of_others"] == 0, found
    if PROBES:
        assert distance(found) <= 0.02, found


def test_within_a_group_it_is_plain_to_see(node):
    """The control: the same prober does see, where there is something to be seen."""
    found = probe(node, ("shared", "host"), ("shared", "guest"))
    for name in MEASURES:
        assert found[name]["told_of_cached"] == found["cached"] and found[name]["told_of_others"] == 0, found
    if PROBES:
        assert distance(found) >= 0.45, found


def test_what_a_victim_does_changes_no_figure_of_another_group(node):
    def figures():
        out = subprocess.run([f"{BIN}/fabricctl", "--socket", node.socket("attacker"), "--json", "status"],
                             capture_output=True, text=True, check=True, timeout=60)
        status = json.loads(out.stdout)
        status.pop("clients")  # fabricctl itself has another number each time
        return status
    before = figures()
    probe(node, ("victim", "victim"), ("shared", "guest"), 200)
    assert figures() == before
