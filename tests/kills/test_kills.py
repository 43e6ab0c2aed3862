# SPDX-License-Identifier: Apache-2.0
"""A node under real requests whose processes are killed, at every step of every protocol and by
chance. KILLS=500 and SEED=n make it longer and another (`make check-kills`); with HELD=1 the daemon runs
under fabricmgr-holder, and none of its deaths may lose the pool.

Needs build/kill (make VARIANT=kill programs), in which the steps are marked.
"""
import os
import tempfile

import pytest
from node import ROLES, Node, Unclean

KILLS = int(os.environ.get("KILLS", "50"))
SEED = int(os.environ.get("SEED", "1"))
IS_HELD = bool(os.environ.get("HELD"))


def kill_often(node, n, look_every=10):
    looked = 0
    try:
        while node.n_kills < n:
            node.disturb()
            if node.n_kills - looked >= look_every:
                node.inspect()
                looked = node.n_kills
        node.inspect(last=True)
    finally:
        for line in node.report().splitlines():
            print("NOTE:", line)
        node.end()


def test_nothing_is_lost_or_left_or_wrong(capsys):
    with tempfile.TemporaryDirectory(prefix="fabricmgr-kills-") as folder, capsys.disabled():
        node = Node(folder, SEED, is_held=IS_HELD)
        kill_often(node, KILLS)
    killed = {name.split()[0] for name in node.by_step}
    assert killed == {*ROLES.values(), "client"}, f"only {killed} were killed at a step"
    assert node.users.counts["answered"] > KILLS
    # A router's death breaks off what it was answering; nothing else does.
    assert node.users.counts["refused"] <= node.users.counts["answered"] / 10


@pytest.mark.parametrize("fault, complaint", [
    ("keep-leases", "leases"),            # a reader that does not drop its leases
    ("leak-discarded", "staged blocks"),  # a daemon that does not free what is given back
    ("resume-short", "a wrong answer"),   # a router that forgets a token when it resumes a request
])
def test_a_planted_fault_is_noticed(fault, complaint):
    with tempfile.TemporaryDirectory(prefix="fabricmgr-kills-") as folder:
        node = Node(folder, SEED, fault=fault)
        with pytest.raises(Unclean, match=complaint):
            kill_often(node, 60, look_every=5)
