# SPDX-License-Identifier: Apache-2.0
"""Sharing groups and tenants of one daemon: configuration, quotas under load, reload, and that a user of one group
gets nothing of another's."""
import array
import ctypes
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import tempfile
import urllib.request

import pytest

import pool_client
from conftest import BIN, until
from every_call import Done, Hint, Iovec, PutParts, Request
from pool_client import Pool, hello
from test_config import check
from test_pool_users import as_nobody

PERMISSION, LIMIT = 9, 6
MIB = 1 << 20

POOLS = """
[pool]
socket = {folder}/pool.sock
socket-mode = 0666
size = 16M
memory = memfd
[metrics]
listen = 127.0.0.1:0
[group research]
size = 48M
memory = memfd
[tenant search]
group = research
users = 65534
guaranteed = 16M
salt-file = {folder}/salt
[tenant batch]
group = research
users = 5002
max = 24M
staging = 4M
[tenant lone]
users = 5003
max = 16M
"""


class Node:
    """A daemon with the groups above; its sockets can be reached by other users."""

    def __init__(self, system, folder, text=POOLS):
        self.folder, self.config = folder, f"{folder}/fabricmgrd.conf"
        os.chmod(folder, 0o755)
        with open(f"{folder}/salt", "w", encoding="utf-8") as file:
            file.write("pepper\n")
        os.chmod(f"{folder}/salt", 0o600)
        self.write(text)
        self.daemon = system.start(f"{BIN}/fabricmgrd", "--config", self.config)
        self.port = int(self.daemon.wait_for(r"http://127\.0\.0\.1:(\d+)")[1])
        self.daemon.wait_for(r"\bready$")

    def write(self, text):
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(text.format(folder=self.folder))

    def socket(self, group):
        return f"{self.folder}/{group}.sock"

    def quota(self, group, *more):
        out = subprocess.run([f"{BIN}/fabricctl", "--socket", self.socket(group), "--json", "quota",
                              *more], capture_output=True, text=True, check=False, timeout=60)
        if out.returncode:
            return out.stderr
        return {tenant["name"]: tenant for tenant in json.loads(out.stdout)}

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            return answer.read().decode()


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="fabricmgr-test-") as path:
        yield path


@pytest.fixture
def node(system, folder):
    return Node(system, folder)


def refusal(*arguments):
    with pytest.raises(OSError) as refused:
        Pool(*arguments)
    assert refused.value.errno == PERMISSION, refused.value
    return str(refused.value)


# ---- configuration ----

FAULTS = (
    ("[tenant a]\nusers = 1\n[tenant a]\nusers = 2\n", 3, "stands above already"),
    ("[tenant A]\nusers = 1\n", 1, "lower-case"),
    ("[tenant default]\nusers = 1\n", 1, "whose section is [pool]"),
    ("[tenant a]\nuser = 1\n", 2, "did you mean users?"),
    ("[tenant a]\nusers = nosuchuser\n", 2, "nosuchuser is no user"),
    ("[tenant a]\nmax = 16M\n", 1, "nobody may act for it"),
    ("[tenant a]\nusers = 1\n", 1, "has no size"),
    ("[tenant a]\nusers = 1\ngroup = b\n", 1, "there is no group b"),
    ("[tenant a]\nusers = 1\nmax = 16M\nmax = 16M\n", 4, "give it once"),
    ("[tenant a]\nusers = 1\nmax = 16M\nguaranteed = 20M\n", 1, "more is guaranteed than its max"),
    ("[tenant a]\nusers = 1\nmax = 32\n", 3, "less than one chunk of 4 MiB: was a letter behind it forgotten"),
    ("[tenant a]\nusers = 1\nmax = 16M\nguaranteed = 4095K\n", 4, "less than one chunk"),
    ("[tenant a]\nusers = 1\nmax = 16M\nsalt-file = /nowhere\n", 4, "/nowhere"),
    ("[group a]\nsize = 16M\nnvm = /x\n", 3, "did you mean nvme?"),
    ("[group a]\nsocket = /a\n", 1, "has no size"),
    ("[group a]\nsize = 16M\nsocket = /s\n[group b]\nsize = 16M\nsocket = /s\n", 4, "the same socket"),
    ("[group a]\nsize = 16M\n[tenant x]\nusers = 1\ngroup = a\nguaranteed = 9M\n[tenant y]\nusers = 2\n"
     "group = a\nguaranteed = 8M\n", 7, "20 MiB are guaranteed together, and the pool of group a has 16 MiB"),
    ("[group a]\nsize = 16M\nredis-tenant = serach\n[tenant search]\nusers = 1\ngroup = a\n", 3,
     "redis-tenant serach: group a has no such tenant"),
    ("[group a]\nsize = 16M\n[tenant x]\nusers = 1\ngroup = a\n[redis]\ntenant = x\n", 7,
     "tenant x: group default has no such tenant"),
    ("[tenants a]\nusers = 1\n", 1, "there is no section [tenants a]"),
)


@pytest.mark.parametrize("text, line, words", FAULTS)
def test_a_fault_is_told_with_its_line(tmp_path, text, line, words):
    out = check(tmp_path / "a.conf", text)
    assert out.returncode == 2
    assert f"a.conf:{line}: " in out.stderr and words in out.stderr, out.stderr


def test_redis_clients_may_act_for_any_tenant_of_their_group(tmp_path):
    text = "[group a]\nsize = 16M\nredis-tenant = {}\n[tenant x]\nusers = 1\ngroup = a\n" \
        "[tenant y]\nusers = 2\ngroup = default\n[redis]\ntenant = {}\n"
    for of_group, of_pool in (("x", "y"), ("default", "default")):
        out = check(tmp_path / "a.conf", text.format(of_group, of_pool))
        assert out.returncode == 0, out.stderr
    out = check(tmp_path / "a.conf", text.format("x", "y"), "--redis-tenant", "x")
    assert out.returncode == 2 and "--redis-tenant x: group default has no such tenant" in out.stderr


def test_what_check_prints_of_groups_is_a_configuration(tmp_path):
    (tmp_path / "salt").write_text("s\n")
    first = check(tmp_path / "a.conf", POOLS.format(folder=tmp_path))
    second = check(tmp_path / "b.conf", first.stdout)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr

    def settings(out):
        return [line.split(" ; ")[0] for line in out.stdout.splitlines() if line[0] != "#"]
    assert settings(first) == settings(second)
    assert "# 3 groups together: 8" in first.stdout
    assert "pepper" not in first.stdout


def test_the_groups_together_must_fit_into_memory(tmp_path):
    with open("/proc/meminfo", encoding="ascii") as file:
        free = int(dict(line.split(":") for line in file)["MemAvailable"].split()[0]) >> 10
    text = "".join(f"[group g{i}]\nsize = {free * 2 // 5}M\nentries = 100000\nmemory = memfd\n" for i in range(3))
    out = check(tmp_path / "a.conf", "[pool]\nsize = 16M\n" + text)
    assert out.returncode == 1
    assert " + other groups " in out.stderr and "MiB of memory are available" in out.stderr, out.stderr
    assert "# group g1: fits" in out.stdout and "g2: fits" not in out.stdout


# ---- tenants of a group ----

def test_a_noisy_tenant_keeps_to_its_maximum_and_from_others_guarantee(node):
    search = Pool(node.socket("research"), tenant="search")
    batch = Pool(node.socket("research"), tenant="batch")
    for n in range(16):
        search.release(search.put(n, MIB))
    for n in range(1000, 1200):
        batch.release(batch.put(n, MIB))
    assert all(search.match(n) for n in range(16))
    found = node.quota("research")
    assert found["search"]["held_bytes"] == 16 * MIB and found["search"]["taken"] == 0
    assert 16 * MIB <= found["batch"]["held_bytes"] <= 24 * MIB
    assert found["batch"]["evictions"] > 150
    assert found["batch"]["quotas"] == {"guaranteed_bytes": 0, "max_bytes": 24 * MIB,
                                        "staging_bytes": 4 * MIB, "requests": 0, "nvme_bytes": 0}
    assert batch.match(3) == 1  # a group is there to share
    with pytest.raises(OSError) as refused:
        batch.stage(MIB, 5)
    assert refused.value.errno == LIMIT and "(staging)" in str(refused.value)
    assert node.quota("research")["batch"]["refused"] == 1
    text = node.metrics()
    assert f'tenant_held_bytes{{group="research",tenant="search"}} {16 * MIB}\n' in text
    assert 'tenant_refused_total{group="research",tenant="batch"} 1\n' in text
    assert "pepper" not in text
    search.detach()
    batch.detach()


def test_quotas_change_by_command_and_by_reload(node):
    before = node.quota("research")
    assert "batch" in before
    after = node.quota("research", "batch", "--max", "32M", "--requests", "7")
    assert after["batch"]["quotas"] == {**before["batch"]["quotas"], "max_bytes": 32 * MIB, "requests": 7}
    assert "guarantee less" in node.quota("research", "batch", "--guaranteed", "40M")
    assert "has no tenant lone" in node.quota("research", "lone", "--max", "1G")
    # A reload that is refused changes nothing, one that is not puts the file's values in place.
    node.write(POOLS.replace("guaranteed = 16M", "guaranteed = 100M"))
    node.daemon.kill(signal.SIGHUP)
    node.daemon.wait_for("FM1302 .*100 MiB are guaranteed together")
    assert node.quota("research") == after
    node.write(POOLS.replace("max = 24M", "max = 28M").replace("users = 5002", "users = 5002, 65534"))
    node.daemon.kill(signal.SIGHUP)
    node.daemon.wait_for("FM1303 .* 2 settings changed")
    until(lambda: node.quota("research")["batch"]["quotas"]["max_bytes"] == 28 * MIB)
    assert node.quota("research")["batch"]["quotas"]["requests"] == 0
    # What needs a restart says so.
    node.write(POOLS + "[tenant new]\nusers = 1\ngroup = research\n")
    node.daemon.kill(signal.SIGHUP)
    node.daemon.wait_for(r"FM1301 reload: \[tenant new\] came: it needs a restart")
    assert "new" not in node.quota("research")
    # And keeps nothing else from changing: one tenant comes, one goes, one moves, in another order.
    changed = POOLS.replace("max = 24M", "max = 20M").replace("users = 5003", "users = 5003, 65534")
    at = changed.index("[tenant search]"), changed.index("[tenant batch]")
    changed = changed[:at[0]] + "[tenant new]\nusers = 1\ngroup = research\n" + changed[at[1]:] \
        + changed[at[0]:at[1]].replace("group = research", "group = default").replace("16M", "8M")
    node.write(changed)
    node.daemon.kill(signal.SIGHUP)
    node.daemon.wait_for(r"FM1301 reload: \[tenant search\] moved: it needs a restart")
    until(lambda: node.quota("research")["batch"]["quotas"]["max_bytes"] == 20 * MIB)
    assert node.quota("research")["search"]["quotas"]["guaranteed_bytes"] == 16 * MIB
    as_nobody(lambda: until(lambda: can_attach(node.socket("lone"))))
    node.write(changed[:changed.index("[tenant search]")].replace("max = 20M", "max = 19M"))
    node.daemon.kill(signal.SIGHUP)
    node.daemon.wait_for(r"FM1301 reload: \[tenant search\] went: it needs a restart")
    until(lambda: node.quota("research")["batch"]["quotas"]["max_bytes"] == 19 * MIB)
    node.write(POOLS.replace("size = 48M", "size = 52M"))
    node.daemon.kill(signal.SIGHUP)
    node.daemon.wait_for(r"FM1301 reload: \[group research\] size has changed: it needs a restart")


def test_the_default_pool_may_name_its_users(system, folder):
    node = Node(system, folder, POOLS.replace("size = 16M", "size = 16M\nallow-uid = 5001\n", 1))
    assert "may not use this pool" in as_nobody_refused(node.socket("pool"))
    node.write(POOLS.replace("size = 16M", "size = 16M\nallow-uid = 5001, 65534\n", 1))
    node.daemon.kill(signal.SIGHUP)
    node.daemon.wait_for("FM1303 .* 1 settings changed")

    def attaches():
        until(lambda: can_attach(node.socket("pool")))
    as_nobody(attaches)


def can_attach(path):
    try:
        Pool(path).detach()
        return True
    except OSError:
        return False


def as_nobody_refused(*arguments):
    read, write = os.pipe()

    def claims():
        os.write(write, refusal(*arguments).encode())
    as_nobody(claims)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as file:
        return file.read()


# ---- another user in another group ----

def files_of(fds):
    return {(os.fstat(fd).st_dev, os.fstat(fd).st_ino) for fd in fds}


def region(link, number):
    size = 24 + 16 + 48 + 32 + 64
    link.send(struct.pack("=IIIIiI IIII 48s 32s 64x", 0x31504d46, 1, 2, size, 0, 0, 0, 0, number, 0, b"", b""))
    _, control, _, _ = link.recvmsg(65536, socket.CMSG_SPACE(64))
    return [fd for _, _, data in control for fd in array.array("i", data[:4])]


def test_a_user_of_one_group_gets_nothing_of_another(node):
    if os.geteuid():
        pytest.skip("needs root, to become another user")
    mine = Pool(node.socket("lone"), tenant="lone")
    mine.release(mine.put(1, MIB))
    result, fds, link, _ = hello(node.socket("lone"), b"lone")
    arena = region(link, 1)
    theirs = files_of([fds[0], fds[1], *arena])  # the daemon keeps them, so that their numbers stay
    assert result == 0 and len(theirs) == 3
    link.close()
    for fd in (*fds, *arena):
        os.close(fd)  # a child must not have them from here
    other = Pool(node.socket("research"), tenant="batch")
    other.release(other.put(2, MIB))

    def claims():
        assert "may not use" in refusal(node.socket("lone"))
        assert refusal(node.socket("research"), 0, "batch") == refusal(node.socket("research"), 0, "lone") == \
            refusal(node.socket("research"), 0, "nobody")
        own = Pool(node.socket("research"))
        assert own.tenant() == ("search", "pepper") and own.match(1) == 0 and own.match(2) == 1
        # It finds what another tenant of its group has, and cannot take it away.
        assert own.lib.fm_pool_remove(own.handle, ctypes.byref(pool_client.key_of(2)), ctypes.c_size_t(1)) == -PERMISSION
        assert own.lib.fm_pool_invalidate(own.handle, bytes(32)) == 0 and own.match(2) == 1
        result, fds, link, answer = hello(node.socket("research"))
        assert result == 0 and b"pepper" in answer
        arenas = [fd for number in range(1, 9) for fd in region(link, number)]
        assert len(arenas) == 2
        assert not files_of([*fds, *arenas]) & theirs
        # Index, headers and the other tenant's arena: only to read, and no way back to writing.
        n_own = 0
        for fd in (fds[0], fds[1], *arenas):
            writable = not read_only(fd)
            n_own += writable
            if not writable:
                with pytest.raises(PermissionError):
                    os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
                with pytest.raises(PermissionError):
                    os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
        assert n_own <= 1
        # Nothing that this process has open is the other group's.
        everything = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
        assert not files_of([fd for fd in everything if os.path.exists(f"/proc/self/fd/{fd}")]) & theirs
    as_nobody(claims)
    mine.detach()
    other.detach()


def read_only(fd):
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags"))
    return flags & os.O_ACCMODE == os.O_RDONLY


def test_figures_of_others_are_for_root_alone(node):
    if os.geteuid():
        pytest.skip("needs root, to become another user")
    other = Pool(node.socket("research"), tenant="batch")

    def claims():
        own = Pool(node.socket("research"))
        out = subprocess.run([f"{BIN}/fabricctl", "--socket", node.socket("research"), "--json", "status"],
                             capture_output=True, text=True, check=True, timeout=60)
        status = json.loads(out.stdout)
        assert {client["tenant"] for client in status["clients"]} == {"search"}
        assert [tenant["name"] for tenant in status["tenants"]] == ["search"]
        assert "for root and the daemon's own user" in node.quota("research", "search", "--max", "1G")
        own.detach()
    as_nobody(claims)
    assert set(node.quota("research")) == {"default", "search", "batch"}
    other.detach()


def test_figures_over_http_are_for_root_and_named_users(system, folder):
    if os.geteuid():
        pytest.skip("needs root, to become another user")

    def status_of(node, path):
        link = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
        link.request("GET", path)
        return link.getresponse().status
    node = Node(system, folder)

    def refused():
        assert [status_of(node, path) for path in ("/metrics", "/", "/healthz")] == [403, 403, 200]
    as_nobody(refused)
    assert "tenant_held_bytes" in node.metrics()
    assert node.daemon.stop() == 0
    node = Node(system, folder, POOLS.replace("[metrics]\n", "[metrics]\nusers = 1, 65534\n"))

    def served():
        assert [status_of(node, path) for path in ("/metrics", "/", "/healthz")] == [200, 200, 200]
    as_nobody(served)


def test_redis_clients_act_for_a_groups_only_tenant(system, folder):
    node = Node(system, folder, POOLS + f"[group lone]\nredis = unix:{folder}/redis.sock\n")
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(f"{folder}/redis.sock")
        link.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nhello\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n")
        answer = b""
        while len(answer) < 16:
            answer += link.recv(100)
    assert answer == b"+OK\r\n$5\r\nhello\r\n"
    assert node.quota("lone")["lone"]["blocks"] == 1 and node.quota("lone")["default"]["blocks"] == 0


def test_passwords_of_all_groups_change_or_none(system, folder):
    from test_redis import Wire
    groups = ("pool", "research")

    def write(group, password):
        with open(f"{folder}/{group}.secret", "w", encoding="utf-8") as file:
            file.write(f"{password}\n")
        os.chmod(f"{folder}/{group}.secret", 0o600)

    def takes(group, password):
        wire = Wire(f"{folder}/{group}.redis")
        answer = wire.ask("AUTH", password)
        wire.close()
        return answer == "OK"
    for group in groups:
        write(group, "first")
    text = POOLS.replace("[group research]\n", "[redis]\nlisten = unix:{folder}/pool.redis\n"
                         "password-file = {folder}/pool.secret\n[group research]\n"
                         "redis = unix:{folder}/research.redis\nredis-password-file = {folder}/research.secret\n")
    node = Node(system, folder, text)
    write("pool", "second")
    write("research", "")
    node.daemon.kill(signal.SIGHUP)
    node.daemon.wait_for("FM1302 reload: nothing is changed: .*research.secret")
    assert all(takes(group, "first") for group in groups) and not takes("pool", "second")
    write("research", "third")
    node.daemon.kill(signal.SIGHUP)
    node.daemon.wait_for("FM1303")
    assert takes("pool", "second") and takes("research", "third")
    assert not any(takes(group, "first") for group in groups)
    assert node.daemon.stop() == 0


def stored(node):
    out = subprocess.run([f"{BIN}/fabricctl", "--socket", node.socket("research"), "--json", "info"],
                         capture_output=True, text=True, check=True, timeout=60)
    return json.loads(out.stdout)["nvme"]["stored"]


def test_a_tenants_share_of_the_log_holds_and_outlives_the_daemon(system, folder):
    text = POOLS.replace("[group research]", "[group research]\nnvme = {folder}/log\nnvme-size = 257M")
    node = Node(system, folder, text.replace("max = 24M", "max = 24M\nnvme = 8M"))
    batch, search = Pool(node.socket("research"), tenant="batch"), Pool(node.socket("research"), tenant="search")
    for n in range(24):
        batch.release(batch.put(n, MIB))
        search.release(search.put(1000 + n, MIB))
        # What is on its way cannot be given up yet: a block that finds its share full of such is not written.
        until(lambda: stored(node) == 2 * n + 2)  # pylint: disable=W0640

    def share():
        found = node.quota("research")
        return found["batch"]["nvme_bytes"], found["search"]["nvme_bytes"]
    until(lambda: share() == (8 * MIB, 24 * MIB))
    batch.detach()
    search.detach()
    assert node.daemon.stop() == 0
    again = Node(system, folder, text.replace("max = 24M", "max = 24M\nnvme = 8M"))
    assert node.quota("research")["batch"]["nvme_bytes"] == 8 * MIB
    batch = Pool(node.socket("research"), tenant="batch")
    keys = (pool_client.Key * 24)(*[pool_client.key_of(n) for n in range(24)])
    there = [batch.lib.fm_pool_fetch(batch.handle, ctypes.byref(key), ctypes.c_size_t(1), ctypes.c_uint64(0))
             for key in keys]
    assert there == [0] * 16 + [1] * 8  # the newest, charged to whom they were written for
    assert node.quota("research")["batch"]["held_bytes"] == 8 * MIB
    batch.detach()
    assert again.daemon.stop() == 0


def test_an_engine_has_the_salt_of_its_tenant(node, tiny_model):
    """It is part of the engine's namespace, without being told to it: the same prompt has other keys."""
    def blocks_after(tenant):
        out = subprocess.run([f"{BIN}/fabric-engine", "run", "-m", tiny_model, "--json", "--pool-socket",
                              node.socket("research"), "--tokens", ",".join(str(n) for n in range(1, 100)),
                              "--max-tokens", "1"], capture_output=True, text=True, check=False, timeout=60,
                             env={**os.environ, "FABRICMGR_TENANT": tenant})
        assert out.returncode == 0, out.stderr
        return node.quota("research")[tenant]["blocks"]
    n = blocks_after("search")
    assert n > 0 and blocks_after("search") == n  # found again
    assert blocks_after("batch") == n             # what search has was not found


def generate(path):
    """The last event of a request to a worker."""
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(60)
        wire.connect(path)
        wire.sendall(b'{"op":"generate","id":1,"tokens":[5,6,7],"max_tokens":2}\n')
        for line in wire.makefile("rb"):
            event = json.loads(line)
            if event.get("event") in ("done", "error"):
                return event
    raise AssertionError("the worker hung up")


def test_an_engine_does_not_go_on_under_another_salt(node, system, tiny_model):
    """The router was told of names that are made with the old one: only a new start helps, and it says so."""
    path = f"{node.folder}/worker.sock"
    worker = system.start(f"{BIN}/fabric-engine", "worker", "--role", "both", "-m", tiny_model, "--pool-socket",
                          node.socket("research"), "--listen", f"unix:{path}",
                          env={**os.environ, "FABRICMGR_TENANT": "search"})
    worker.wait_for(r"\bready$")
    assert generate(path)["event"] == "done"
    for salt, expected in (("pepper\n", "done"), ("vinegar\n", "error")):
        node.daemon.kill()
        node.daemon.process.wait()
        with open(f"{node.folder}/salt", "w", encoding="utf-8") as file:
            file.write(salt)
        node.daemon = system.start(f"{BIN}/fabricmgrd", "--config", node.config)
        node.daemon.wait_for(r"\bready$")
        event = generate(path)
        assert event["event"] == expected, event
    assert "another salt" in event["message"] and "start this program again" in event["message"]
    assert "vinegar" not in json.dumps(event)


# ---- blocks that are on NVMe alone ----

REPLACE, N_EACH = 1, 12
NVME = POOLS.replace("[group research]", "[group research]\nnvme = {folder}/log\nnvme-size = 257M")


def on_nvme_alone(node):
    """Root acts for batch: keys 1 to 12 are its blocks, in the log and not in memory."""
    batch = Pool(node.socket("research"), tenant="batch")
    for n in range(1, N_EACH + 1):
        batch.release(batch.put(n, MIB))
    until(lambda: node.quota("research")["batch"]["nvme_bytes"] == N_EACH * MIB)
    evict(node)
    assert not any(batch.match(n) for n in range(1, N_EACH + 1))
    return batch


def evict(node):
    out = subprocess.run([f"{BIN}/fabricctl", "--socket", node.socket("research"), "evict"], capture_output=True,
                         text=True, check=False, timeout=60)
    assert out.returncode == 0, out.stderr


def seal_as(pool, n, flags=0):
    """The result of sealing bytes that are not those of @n under its key."""
    block = pool.stage(MIB)[0]
    ctypes.memmove(block.data, b"B" * MIB, MIB)
    seal = pool_client.Seal(ctypes.pointer(block), pool_client.key_of(n), None, 0, flags)
    result = pool.lib.fm_block_seal(pool.handle, bytes(32), ctypes.byref(seal), ctypes.c_size_t(1))
    end = pool.lib.fm_block_discard if result else pool.lib.fm_block_release
    end(pool.handle, ctypes.byref(block), ctypes.c_size_t(1))
    return result


def fetch(pool, n):
    pool.lib.fm_pool_fetch.restype = ctypes.c_int64
    return pool.lib.fm_pool_fetch(pool.handle, ctypes.byref(pool_client.key_of(n)), ctypes.c_size_t(1),
                                  ctypes.c_uint64(30 * 10 ** 9))


def remove(pool, n):
    return pool.lib.fm_pool_remove(pool.handle, ctypes.byref(pool_client.key_of(n)), ctypes.c_size_t(1))


def is_as_it_was(pool, n):
    block = pool.acquire(n) if fetch(pool, n) == 1 else None
    if not block:
        return False
    same = ctypes.string_at(block.data, block.length) == pool_client.bytes_of(n, MIB)
    pool.release(block)
    return same


def test_what_another_tenant_has_on_nvme_is_not_taken_replaced_or_removed(system, folder):
    if os.geteuid():
        pytest.skip("needs root, to become another user")
    node = Node(system, folder, NVME)
    batch = on_nvme_alone(node)

    def claims():
        search = Pool(node.socket("research"))
        assert search.tenant()[0] == "search"
        assert seal_as(search, 1) == pool_client.EXISTS
        assert seal_as(search, 2, REPLACE) == -PERMISSION
        assert remove(search, 3) == -PERMISSION
        assert search.put_group(4, MIB) is False
        assert search.lib.fm_pool_invalidate(search.handle, bytes(32)) == 0
        # What is fetched stays its tenant's.
        assert fetch(search, 7) == 1 and search.match(7) == 1
        assert remove(search, 7) == -PERMISSION and seal_as(search, 7, REPLACE) == -PERMISSION
        # Its own goes, and nothing else of the namespace.
        for n in range(1000, 1004):
            search.release(search.put(n, MIB))
        assert search.lib.fm_pool_invalidate(search.handle, bytes(32)) == 4
        assert search.match(1000) == 0 and search.match(7) == 1
        assert search.lib.fm_pool_invalidate(search.handle, bytes(32)) == 0
    as_nobody(claims)
    until(lambda: [node.quota("research")["search"][what] for what in ("nvme_bytes", "blocks")] == [0, 0])
    found = node.quota("research")["batch"]
    assert found["blocks"] == 1 and found["nvme_bytes"] == N_EACH * MIB
    assert seal_as(batch, 7, REPLACE) == 0 and remove(batch, 7) == 1
    assert all(is_as_it_was(batch, n) for n in range(1, N_EACH + 1) if n != 7)
    # In memory and on NVMe: what is refused of the one leaves the other, too.
    as_nobody(lambda: invalidates_nothing(node))
    evict(node)
    assert all(is_as_it_was(batch, n) for n in range(1, N_EACH + 1) if n != 7)
    batch.detach()
    # The log says whose a block is after a restart, too.
    assert node.daemon.stop() == 0
    node = Node(system, folder, NVME)
    as_nobody(lambda: invalidates_nothing(node))
    batch = Pool(node.socket("research"), tenant="batch")
    assert all(is_as_it_was(batch, n) for n in range(1, N_EACH + 1) if n != 7)
    batch.detach()
    # Who administers the node may: the whole namespace, whoever's the blocks are.
    batch = Pool(node.socket("research"), tenant="search")
    assert batch.lib.fm_pool_invalidate(batch.handle, bytes(32)) == N_EACH - 1
    batch.detach()


def invalidates_nothing(node):
    search = Pool(node.socket("research"))
    assert search.lib.fm_pool_invalidate(search.handle, bytes(32)) == 0
    assert seal_as(search, 2) == pool_client.EXISTS and remove(search, 3) == -PERMISSION
    search.detach()


def hint(pool, n):
    block, wish = pool.acquire(n), Hint(ctypes.sizeof(Hint), -16, 0, 0)
    result = pool.lib.fm_block_hint(pool.handle, ctypes.byref(block), ctypes.byref(wish))
    pool.release(block)
    return result


def test_a_hint_is_for_the_blocks_of_ones_own_tenant(node):
    if os.geteuid():
        pytest.skip("needs root, to become another user")
    batch = Pool(node.socket("research"), tenant="batch")
    batch.release(batch.put(1, MIB))

    def claims():
        search = Pool(node.socket("research"))
        search.release(search.put(2, MIB))
        assert hint(search, 2) == 0 and hint(search, 1) == -PERMISSION
    as_nobody(claims)
    assert hint(batch, 1) == 0
    batch.detach()


# ---- at a maximum ----

MINUTE = 60 * 10 ** 9


def at_maximum(node):
    """A client of batch that holds all that batch may have."""
    batch = Pool(node.socket("research"), tenant="batch")
    return batch, [batch.put(n, MIB) for n in range(24)]


def queued_put(pool, n, deadline_ns):
    """Its queue, and what has to live as long as it: fm_queue_wait() tells how it ended."""
    queue, buffer = ctypes.c_void_p(), ctypes.create_string_buffer(pool_client.bytes_of(n, MIB), MIB)
    part = Iovec(ctypes.cast(buffer, ctypes.c_void_p), MIB)
    put = PutParts(pool_client.key_of(n), None, ctypes.pointer(part), 1, 0, 0)
    pool.check(pool.lib.fm_queue_create(pool.handle, None, ctypes.byref(queue)))
    request = Request(ctypes.sizeof(Request), 6, 1, deadline_ns, 1, puts=ctypes.pointer(put), ns=bytes(32))
    pool.check(pool.lib.fm_queue_submit(queue, ctypes.byref(request), None))
    return queue, (buffer, part, put, request)


def waited(pool, queue, wait_ns):
    """The result of the queue's only request; None: not within @wait_ns."""
    pool.lib.fm_queue_wait.restype = ctypes.c_int64
    done = Done()
    n = pool.lib.fm_queue_wait(queue, ctypes.byref(done), ctypes.c_size_t(1), ctypes.c_uint64(wait_ns))
    return done.result if n == 1 else None


def test_a_queued_put_waits_for_room_in_its_tenants_maximum(node):
    batch, held = at_maximum(node)
    queue, _ = queued_put(batch, 100, 3 * 10 ** 8)
    assert waited(batch, queue, MINUTE) == -LIMIT
    batch.lib.fm_queue_destroy(queue)
    queue, _ = queued_put(batch, 101, MINUTE)
    assert waited(batch, queue, 5 * 10 ** 8) is None
    batch.release(held.pop())
    assert waited(batch, queue, MINUTE) == 0 and batch.match(101) == 1
    batch.lib.fm_queue_destroy(queue)
    batch.detach()


def test_who_was_refused_for_one_quota_waits_for_another(node):
    """Two clients of a tenant wait for room; what the second was refused for before is not said of that."""
    clients = [Pool(node.socket("research"), tenant="batch") for _ in range(2)]
    with pytest.raises(OSError) as refused:
        clients[1].stage(MIB, 5)
    assert "(staging)" in str(refused.value)
    batch, held = at_maximum(node)
    requests = []
    for n, client in enumerate(clients):
        requests.append(queued_put(client, 200 + n, MINUTE))
        until(lambda: node.quota("research")["batch"]["requests"] >= len(requests))  # pylint: disable=W0640
    assert [waited(client, queue, 3 * 10 ** 8) for client, (queue, _) in zip(clients, requests)] == [None, None]
    for block in held[-2:]:
        batch.release(block)
    for client, (queue, _) in zip(clients, requests):
        assert waited(client, queue, MINUTE) == 0
        client.lib.fm_queue_destroy(queue)
        client.detach()
    batch.detach()
