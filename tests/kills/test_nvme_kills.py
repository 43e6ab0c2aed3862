# SPDX-License-Identifier: Apache-2.0
"""A daemon with an NVMe log under traffic: clients and the daemon are killed, at steps and by chance.

NVME_KILLS (60) and SEED (1) choose how long and which; one kill in 8 (NVME_DAEMON_SHARE) is the daemon's.
NVME_SECONDS ends it before. Needs build/kill (make VARIANT=kill programs).
"""
import os
import tempfile
import time

import pytest
from node import Unclean
from nvme_node import NvmeNode

KILLS = int(os.environ.get("NVME_KILLS", "60"))
SECONDS = float(os.environ.get("NVME_SECONDS", "1e9"))
SHARE = float(os.environ.get("NVME_DAEMON_SHARE", "0.125"))
SEED = int(os.environ.get("SEED", "1"))


def kill_often(node, n, look_every, seconds=1e9):
    looked, end = 0, time.monotonic() + seconds
    try:
        while node.n_kills < n and time.monotonic() < end:
            node.disturb(SHARE)
            if node.n_kills - looked >= look_every:
                node.inspect()
                looked = node.n_kills
        node.inspect()
    finally:
        for line in node.report().splitlines():
            print("NOTE:", line)
        node.end()


def test_nvme_traffic_under_kills_loses_leaks_and_changes_nothing(capsys):
    with tempfile.TemporaryDirectory(prefix="fabricmgr-nvme-kills-") as folder, capsys.disabled():
        node = NvmeNode(folder, SEED)
        kill_often(node, KILLS, 30 if KILLS < 200 else 60, SECONDS)
    assert node.kills_of("client") > 20 and node.kills_of("daemon") > 2
    assert any(" nvme: " in name or " fetch: " in name for name in node.file.steps())
    assert node.returned > 3 and node.waits_s


def test_a_planted_fault_is_noticed():
    """A tier that flips a bit and does not look at checksums; those of other parts: test_kills.py."""
    with tempfile.TemporaryDirectory(prefix="fabricmgr-nvme-kills-") as folder:
        with pytest.raises(Unclean, match="a wrong byte|bad blocks"):
            node = NvmeNode(folder, SEED, fault="wrong-read")
            kill_often(node, 40, look_every=10)
