# SPDX-License-Identifier: Apache-2.0
"""The places of a daemon: one user does not take all of them, and the last are for who administers it."""
import os
import resource
import time

import pytest

from pool_client import Pool, hello
from test_pool_users import shared  # pylint: disable=unused-import

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")

LIMIT, OF_USER, PLACES, RESERVE = 6, 256, 1024, 32


def refused_as(uid, socket):
    """What a client of @uid is told."""
    os.seteuid(uid)
    try:
        with pytest.raises(OSError) as refused:
            Pool(socket)
    finally:
        os.seteuid(0)
    assert refused.value.errno == LIMIT, refused.value
    return str(refused.value)


def attach_as(uid, socket, n):
    """Connections of @n clients of @uid, by the protocol itself."""
    links = []
    os.seteuid(uid)  # what SO_PEERCRED tells
    try:
        for _ in range(n):
            result, fds, link, _ = hello(socket)
            assert result == 0
            links.append(link)
            for fd in fds:
                os.close(fd)
    finally:
        os.seteuid(0)
    return links


def test_one_user_does_not_take_all_places(shared):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 8 * PLACES:
        pytest.skip(f"needs {8 * PLACES} open files, may have {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (8 * PLACES, hard))
    assert resource.prlimit(shared.process.pid, resource.RLIMIT_NOFILE)[0] == hard  # it takes what it may
    links = attach_as(5001, shared.socket, OF_USER)
    for _ in range(200):
        assert "user 5001 has 256 clients attached already" in refused_as(5001, shared.socket)
    lines = [line for line in open(shared.log.name, encoding="utf-8") if "FM1103" in line]
    assert lines and len(lines) <= 100 and "as one user may have" in lines[0]
    # Others are served, until none but the last places are left.
    for uid in (5002, 5003, 5004):
        links += attach_as(uid, shared.socket, min(OF_USER, PLACES - RESERVE - len(links)))
    assert len(links) == PLACES - RESERVE
    assert "992 clients are attached already, and the last 32 places are for root" in refused_as(5005, shared.socket)
    assert "blocks" in shared.ctl("status")
    Pool(shared.socket).detach()
    # A place that is given back is another's.
    links.pop(0).close()
    end = time.monotonic() + 30
    while True:
        try:
            attach_as(5005, shared.socket, 1)
            break
        except (AssertionError, OSError):  # refused before it asked
            assert time.monotonic() < end
    for link in links:
        link.close()
