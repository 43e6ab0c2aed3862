# SPDX-License-Identifier: Apache-2.0
"""The Redis front end as Redis' own clients and hostile ones see it."""
import contextlib
import os
import random
import select
import shutil
import resource
import socket
import subprocess
import threading
import time

import pytest

from conftest import BIN, until
from pool_client import Pool

TOP_VALUE = 4 << 20


class Wire:
    """A connection that speaks bytes."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def send(self, *arguments):
        parts = [b"*%d\r\n" % len(arguments)]
        for argument in arguments:
            data = argument if isinstance(argument, bytes) else str(argument).encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
        self.socket.sendall(b"".join(parts))

    def reply(self):
        line = self.file.readline()
        assert line.endswith(b"\r\n"), line
        kind, rest = line[:1], line[1:-2]
        if kind in b"+":
            return rest.decode()
        if kind == b"-":
            return ValueError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            if rest == b"-1":
                return None
            data = self.file.read(int(rest) + 2)
            assert len(data) == int(rest) + 2 and data.endswith(b"\r\n")
            return data[:-2]
        if kind == b"_":
            return None
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        if kind == b"%":
            return {self.reply(): self.reply() for _ in range(int(rest))}
        raise AssertionError(line)

    def ask(self, *arguments):
        self.send(*arguments)
        return self.reply()

    def close(self):
        self.file.close()
        self.socket.close()


@pytest.fixture
def redis(system):
    """By LRU: the tests know then what a flood of values drives out."""
    path = f"{system.folder}/redis.sock"
    daemon = system.daemon("64M", "--redis", f"unix:{path}", "--policy", "lru")
    daemon.path, daemon.system = path, system
    return daemon


@pytest.fixture
def wire(redis):
    with contextlib.closing(Wire(redis.path)) as connection:
        yield connection


def test_values_of_every_length_come_back(wire):
    chance = random.Random(1)
    for length in (0, 1, 5, 1000, 4095, 4096, 16383, 16384, 65535, 65536, 1 << 20, 2 << 20, TOP_VALUE):
        value = chance.randbytes(length)
        assert wire.ask("SET", f"k{length}", value) == "OK"
        assert wire.ask("GET", f"k{length}") == value
        assert wire.ask("STRLEN", f"k{length}") == length
        assert wire.ask("EXISTS", f"k{length}") == 1
        for first, last in ((0, -1), (1, -2), (-3, -1), (5, 2), (length - 1, length + 10), (0, 0)):
            end = last + length if last < 0 else last
            start = max(0, first + length) if first < 0 else first
            assert wire.ask("GETRANGE", f"k{length}", first, last) == value[start:end + 1], length
    assert wire.ask("GET", "absent") is None
    assert wire.ask("EXISTS", "absent") == 0


def test_the_checksum_is_that_of_the_bytes_however_they_came(redis, wire):
    """It is summed piece by piece while they arrive; fabricctl verify reads each block again."""
    chance = random.Random(4)
    for n, length in enumerate((1, 4096, 16384, 16385, 300001, (512 << 10) + 1, 2 << 20, TOP_VALUE)):
        value = chance.randbytes(length)
        message = b"*3\r\n$3\r\nSET\r\n$2\r\nk%d\r\n$%d\r\n%s\r\n" % (n, length, value)
        at = 0
        while at < len(message):
            step = chance.choice((1, 7, 4096, 65537, 1 << 20))
            wire.socket.sendall(message[at:at + step])
            at += step
        assert wire.reply() == "OK"
        assert wire.ask("GET", f"k{n}") == value
    verified = redis.system.control("verify")
    assert verified["bad"] == 0 and verified["good"] == 8, verified


def test_a_set_replaces_at_once_and_a_delete_deletes(wire):
    for value in (b"a", b"", b"b" * 100000, b"", b"c"):
        assert wire.ask("SET", "k", value) == "OK"
        assert wire.ask("GET", "k") == value
        assert wire.ask("DBSIZE") == 1
    assert wire.ask("SET", "k", "d", "NX") is None
    assert wire.ask("SET", "other", "d", "XX") is None
    assert wire.ask("SET", "k", "d", "XX") == "OK"
    assert wire.ask("SET", "new", "n", "NX") == "OK"
    assert wire.ask("DEL", "k", "absent") == 1
    assert wire.ask("GET", "k") is None
    assert wire.ask("UNLINK", "new") == 1
    assert wire.ask("DBSIZE") == 0
    assert "nothing expires here" in str(wire.ask("SET", "k", "v", "EX", "5"))
    assert wire.ask("GET", "k") is None


def test_many_keys_in_one_command(wire):
    pairs = {f"key:{i}": os.urandom(50 + 300 * (i % 100)) for i in range(500)}
    assert wire.ask("MSET", *(part for pair in pairs.items() for part in pair)) == "OK"
    assert wire.ask("MGET", *pairs, "absent") == [*pairs.values(), None]
    assert wire.ask("EXISTS", *pairs, "absent") == 500
    assert wire.ask("DBSIZE") == 500
    seen, cursor = [], "0"
    while True:
        cursor, names = wire.ask("SCAN", cursor, "MATCH", "key:*", "COUNT", 50)
        cursor = cursor.decode()
        seen += names
        if cursor == "0":
            break
    assert sorted(seen) == sorted(name.encode() for name in pairs)
    assert wire.ask("FLUSHALL") == "OK"
    assert wire.ask("DBSIZE") == 0
    assert wire.ask("EXISTS", *pairs) == 0
    big = {f"big:{i}": os.urandom(100000) for i in range(20)}
    assert wire.ask("MSET", *(part for pair in big.items() for part in pair)) == "OK"
    assert wire.ask("MGET", *big) == list(big.values())


def test_names_that_are_not_kept_are_not_listed(system):
    path = f"{system.folder}/redis.sock"
    system.daemon("64M", "--redis", f"unix:{path}", "--redis-names", "0")
    with contextlib.closing(Wire(path)) as wire:
        wire.ask("SET", "a", "b")
        said = str(wire.ask("SCAN", 0))
        assert "not kept" in said and "--redis-names" in said
        assert wire.ask("DBSIZE") == 1


def test_a_pipeline_of_ten_thousand(wire):
    n = 10000
    data = b"".join(b"*3\r\n$3\r\nSET\r\n$5\r\nk%04d\r\n$4\r\n%04d\r\n*2\r\n$3\r\nGET\r\n$5\r\nk%04d\r\n"
                    % (i % 1000, i, i % 1000) for i in range(n))
    sender = threading.Thread(target=wire.socket.sendall, args=(data,))
    sender.start()
    for i in range(n):
        assert wire.reply() == "OK"
        assert wire.reply() == b"%04d" % i
    sender.join()


def command(*arguments):
    return b"*%d\r\n" % len(arguments) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a) for a in arguments)


def test_a_pipeline_of_sets_is_answered_in_order(redis, wire):
    """SETs behind each other are stored together: what stands between them, and a key that is set twice,
    still sees what came before and nothing else."""
    chance = random.Random(5)
    stored, message, expected = {}, [], []
    for i in range(3000):
        name = b"k%d" % chance.randrange(8)
        kind = chance.choice(("set", "set", "set", "set", "get", "long", "empty", "del", "wrong", "unknown"))
        value = b"" if kind == "empty" else chance.randbytes(chance.choice((1, 100, 100, 100, 1000)))
        if kind == "long":
            value = chance.randbytes(20000)
        if kind in ("set", "long", "empty"):
            message.append(command(b"SET", name, value))
            expected.append("OK")
            stored[name] = value
        elif kind == "get":
            message.append(command(b"GET", name))
            expected.append(stored.get(name))
        elif kind == "del":
            message.append(command(b"DEL", name))
            expected.append(int(stored.pop(name, None) is not None))
        elif kind == "wrong":
            message.append(command(b"SET", name))
            expected.append(ValueError)
        else:
            message.append(command(b"LPUSH", name, value or b"x"))
            expected.append(ValueError)
    sender = threading.Thread(target=wire.socket.sendall, args=(b"".join(message),))
    sender.start()
    for i, wanted in enumerate(expected):
        got = wire.reply()
        assert isinstance(got, ValueError) if wanted is ValueError else got == wanted, i
    sender.join()
    for name, value in stored.items():
        assert wire.ask("GET", name) == value
    verified = redis.system.control("verify")
    assert verified["bad"] == 0 and redis.system.control("status")["blocks"]["staging"] == 0, verified


@pytest.mark.parametrize("length", (15000, 200))
def test_a_pipeline_of_sets_is_stored_where_few_may_be_staged_at_a_time(system, length):
    """All values of a pipeline at once are beyond what a client may have staged; one by one they are not."""
    path = f"{system.folder}/redis.sock"
    system.daemon("16M", "--redis", f"unix:{path}", "--client-staging", "32K")
    with contextlib.closing(Wire(path)) as wire:
        values = [b"%03d" % i * (length // 3) for i in range(40)]
        wire.socket.sendall(b"".join(command(b"SET", b"k%d" % i, value) for i, value in enumerate(values)))
        assert [wire.reply() for _ in values] == ["OK"] * 40
        assert wire.ask("MGET", *(f"k{i}" for i in range(40))) == values
        assert "staging of a client" in str(wire.ask("SET", "k", bytes(100000)))


def test_a_long_value_that_comes_without_a_pause_does_not_keep_others_waiting(redis, wire):
    end = threading.Event()

    def send_on(mine):
        mine.socket.sendall(b"*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n$%d\r\n" % TOP_VALUE)
        left, piece = TOP_VALUE, bytes(16)
        while left and not end.is_set():
            left -= mine.socket.send(piece)
        if not left:
            mine.socket.sendall(b"\r\n")

    with contextlib.closing(Wire(redis.path)) as mine:
        sender = threading.Thread(target=send_on, args=(mine,))
        sender.start()
        try:
            for i in range(50):
                assert wire.ask("SET", "short", b"%d" % i) == "OK" and wire.ask("GET", "short") == b"%d" % i
        finally:
            end.set()
            sender.join()
    assert wire.ask("EXISTS", "long") == 0 or wire.ask("STRLEN", "long") == TOP_VALUE


def test_protocol_three_and_what_clients_ask_first(wire):
    assert wire.ask("HELLO")[0] == b"server"
    hello = wire.ask("HELLO", "3", "SETNAME", "me")
    assert hello[b"proto"] == 3
    wire.send("GET", "absent")
    assert wire.file.readline() == b"_\r\n"
    assert wire.ask("CLIENT", "GETNAME") == b"me"
    assert wire.ask("CLIENT", "SETINFO", "LIB-NAME", "x") == "OK"
    assert wire.ask("SELECT", 0) == "OK"
    assert "out of range" in str(wire.ask("SELECT", 1))
    assert wire.ask("PING") == "PONG" and wire.ask("PING", "x") == b"x"
    assert b"fabricmgr_version" in wire.ask("INFO") and b"maxmemory_policy:allkeys-lru" in wire.ask("INFO")
    assert wire.ask("CONFIG", "GET", "save") == {b"save": b""}
    assert "unknown command" in str(wire.ask("LPUSH", "a", "b"))
    assert "wrong number" in str(wire.ask("GET"))
    assert wire.ask("TTL", "absent") == -2
    assert wire.ask("HELLO", "4").args[0].startswith("NOPROTO")


def test_info_of_the_sections_asked_for(wire):
    def sections(*names):
        text = wire.ask("INFO", *names).decode()
        assert text.endswith("\r\n") or not text
        return [line[2:] for line in text.split("\r\n") if line.startswith("# ")]
    every = ["Server", "Clients", "Memory", "Persistence", "Stats", "Keyspace"]
    assert sections() == sections("all") == sections("DEFAULT") == sections("everything") == every
    assert sections("memory") == ["Memory"] and sections("Keyspace", "CLIENTS") == ["Clients", "Keyspace"]
    assert sections("replication") == []
    assert b"used_memory:" in wire.ask("INFO", "memory") and b"maxclients" not in wire.ask("INFO", "memory")


def test_what_the_tools_of_redis_look_for_is_there(redis, wire):
    assert wire.ask("CONFIG", "GET", "save") == [b"save", b""]
    assert wire.ask("CONFIG", "GET", "*") == [b"save", b"", b"appendonly", b"no"]
    assert wire.ask("CONFIG", "GET", "maxmemory") == []
    for nonsense in (("SET", "save", "60 1"), ("RESETSTAT", "x")):
        assert "CONFIG knows GET alone" in str(wire.ask("CONFIG", *nonsense))
    tool = shutil.which("redis-benchmark")
    assert tool, "install redis-tools"
    out = subprocess.run([tool, "-s", redis.path, "-n", "200", "-c", "2", "-t", "get", "-q"], capture_output=True,
                         text=True, check=True, timeout=60)
    assert "WARN" not in out.stdout + out.stderr, out
    info = dict(line.split(":", 1) for line in wire.ask("INFO").decode().splitlines() if ":" in line)
    wanted = ("used_memory", "connected_clients", "blocked_clients", "total_commands_processed",
              "total_connections_received", "rdb_bgsave_in_progress", "aof_rewrite_in_progress", "loading")
    assert all(int(info[name]) >= 0 for name in wanted), info
    with subprocess.Popen([shutil.which("redis-cli"), "-s", redis.path, "--stat", "-i", "0.01"],
                          stdout=subprocess.PIPE, text=True) as stat:
        lines = [stat.stdout.readline() for _ in range(6)]
        stat.kill()
    assert not any("-9223372036854775808" in line for line in lines), lines
    assert any(line.split()[3:4] == ["0"] for line in lines), lines


def test_a_password(system):
    path, secret = f"{system.folder}/redis.sock", f"{system.folder}/secret"
    with open(secret, "w", encoding="utf-8") as file:
        file.write("open sesame\n")
    daemon = system.daemon("64M", "--redis", f"unix:{path}", "--redis-password-file", secret)
    with contextlib.closing(Wire(path)) as wire:
        assert wire.ask("GET", "a").args[0].startswith("NOAUTH")
        assert wire.ask("SET", "a", b"x" * 100000).args[0].startswith("NOAUTH")
        assert wire.ask("AUTH", "wrong").args[0].startswith("WRONGPASS")
        assert wire.ask("GET", "a").args[0].startswith("NOAUTH")
        assert wire.ask("AUTH", "default", "open sesame") == "OK"
        assert wire.ask("SET", "a", "b") == "OK"
    with contextlib.closing(Wire(path)) as wire:
        assert wire.ask("HELLO", "3", "AUTH", "default", "open sesame")[b"proto"] == 3
        assert wire.ask("GET", "a") == b"b"
    assert daemon.stop() == 0
    assert "sesame" not in "".join(filter(None, daemon.lines))


def test_an_exists_keeps_its_promise_until_the_get(redis, wire):
    """A client that waits for ever on a null reply gets what EXISTS told it of, whatever happens."""
    value = os.urandom(100000)
    wire.ask("SET", "promised", value)
    assert wire.ask("EXISTS", "promised") == 1
    for i in range(1200):  # twice the pool
        assert wire.ask("SET", f"flood {i}", bytes(100000)) == "OK"
    assert wire.ask("GET", "flood 0") is None
    assert wire.ask("GET", "promised") == value
    for i in range(1200):
        wire.ask("SET", f"flood {i}", bytes(100000))
    assert wire.ask("GET", "promised") is None
    # Held are at most a quarter of the pool: what is beyond is told to be absent.
    for i in range(500):
        wire.ask("SET", f"k{i}", bytes(100000))
    held = [wire.ask("EXISTS", f"k{i}") for i in range(500)]
    assert 100 < sum(held) <= 16 * (1 << 20) // 100000
    assert redis.system.control("status")["blocks"]["staging"] == 0


def test_refused_values_and_the_next_command(wire):
    assert "at most 4194304" in str(wire.ask("SET", "big", bytes(TOP_VALUE + 1)))
    assert wire.ask("PING") == "PONG"
    assert "only values" in str(wire.ask("GETRANGE", "a", "1" * 20000, "2"))
    assert wire.ask("PING") == "PONG"
    wire.socket.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000000\r\n")
    assert "at most 4194304" in str(wire.reply())
    assert wire.file.read() == b""  # too much to skip: the connection ends


@pytest.mark.parametrize("bytes_", [b"*x\r\n", b"*1\r\n:3\r\n", b"*99999\r\n",
                                    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$20000\r\n" + bytes(20000) + b"xx"])
def test_nonsense_ends_its_connection_only(redis, wire, bytes_):
    with contextlib.closing(Wire(redis.path)) as other:
        assert other.ask("SET", "a", "b") == "OK"
        wire.socket.sendall(bytes_)
        assert "Protocol error" in str(wire.reply())
        assert wire.file.read() == b""
        assert other.ask("GET", "a") == b"b"


def test_half_a_value_leaves_nothing(redis):
    for cut in (10, 20000, 1 << 20):
        wire = Wire(redis.path)
        wire.socket.sendall((b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$2097152\r\n" + bytes(2 << 20))[:cut])
        time.sleep(0.1)
        wire.close()
    with contextlib.closing(Wire(redis.path)) as wire:
        assert wire.ask("EXISTS", "half") == 0
        until(lambda: not redis.system.control("status")["blocks"]["staging"])


def flood(wire, message, most=80 << 20, patience=0.5):
    """Sends until the other side takes no more; never reads."""
    sent = 0
    wire.socket.setblocking(False)
    while sent < most and select.select((), (wire.socket,), (), patience)[1]:
        with contextlib.suppress(BlockingIOError):
            sent += wire.socket.send(memoryview(message)[sent % len(message):])
    wire.socket.settimeout(20)
    return sent


def test_clients_that_do_not_read_have_one_bound_together(redis):
    text = bytes(range(32, 96)) * 1000
    message = b"*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n" % (len(text), text)
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(contextlib.closing(Wire(redis.path))) for _ in range(8)]
        sent = sum(flood(one, message) for one in wires)
        assert 200 << 20 < sent < 300 << 20, sent  # what was taken is what its answers take
        # The others are served meanwhile, and who reads after all has every answer.
        with contextlib.closing(Wire(redis.path)) as other:
            assert other.ask("SET", "k", b"v" * 100000) == "OK" and other.ask("GET", "k") == b"v" * 100000
            assert other.ask("ECHO", text) == text
        assert [wires[0].reply() == text for _ in range(100)] == [True] * 100


@pytest.mark.parametrize("old, new", ((b"v" * 50000, b""), (b"", b"v" * 50000)), ids=("emptied", "filled"))
def test_a_value_on_nvme_alone_counts_as_there(system, old, new):
    path = f"{system.folder}/redis.sock"
    system.daemon("16M", "--redis", f"unix:{path}", "--policy", "lru",
                  "--nvme", f"{system.folder}/log", "--nvme-size", "272M")

    def stored():
        return system.control("status")["nvme"]["stored"]

    with contextlib.closing(Wire(path)) as wire:
        names = ("kept", "replaced")
        for name in names:
            assert wire.ask("SET", name, old) == "OK"
        deadline = time.monotonic() + 60
        while stored() < len(names):
            assert time.monotonic() < deadline, "the values do not get to NVMe"
            time.sleep(0.05)
        for i in range(80):
            assert wire.ask("SET", f"other{i}", b"o" * 300000) == "OK"
        fetched = system.control("status")["nvme"]["fetched"]
        assert wire.ask("SET", names[0], new, "NX") is None
        assert system.control("status")["nvme"]["fetched"] > fetched, "they were in memory all the time"
        assert wire.ask("GET", names[0]) == old
        assert wire.ask("SET", names[1], new) == "OK" and wire.ask("GET", names[1]) == new
        assert wire.ask("DEL", names[1]) == 1 and wire.ask("GET", names[1]) is None


def test_many_clients_read_what_others_wrote_whole(redis):
    """Values name themselves in every 64 bytes, so that a torn one is seen."""
    faults, ends = [], threading.Event()

    def use(seed):
        chance = random.Random(seed)
        with contextlib.closing(Wire(redis.path)) as wire:
            while not ends.is_set():
                key = f"k{chance.randrange(40)}"
                if chance.random() < 0.5:
                    stamp = b"%-63d\n" % chance.randrange(1 << 60)
                    assert wire.ask("SET", key, stamp * chance.choice((1, 500, 4000))) == "OK"
                elif chance.random() < 0.1:
                    wire.ask("DEL", key)
                else:
                    wire.ask("EXISTS", key)
                    value = wire.ask("GET", key)
                    if value is not None and value != value[:64] * (len(value) // 64):
                        faults.append(value[:200])

    threads = [threading.Thread(target=use, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(4)
    ends.set()
    for thread in threads:
        thread.join()
    assert not faults
    assert redis.system.control("verify")["bad"] == 0


def test_without_descriptors_connections_wait_and_nothing_spins(redis):
    with contextlib.closing(Wire(redis.path)) as wire:
        assert wire.ask("PING") == "PONG"  # its own descriptors are there
    pid = redis.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    n = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd")) + 5

    def used():
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return sum(int(x) for x in file.read().rsplit(")", 1)[1].split()[11:13]) / os.sysconf("SC_CLK_TCK")

    resource.prlimit(pid, resource.RLIMIT_NOFILE, (n, before[1]))
    with contextlib.ExitStack() as many:
        for path, kind in ((redis.path, socket.SOCK_STREAM), (redis.system.socket, socket.SOCK_SEQPACKET)):
            for _ in range(20):
                many.enter_context(socket.socket(socket.AF_UNIX, kind)).connect(path)
        redis.wait_for("FM1203 .*Too many open files")
        redis.wait_for("FM1103 .*Too many open files")
        start = used()
        time.sleep(1)
        assert used() - start < 0.5
        assert sum("FM1203" in line or "FM1103" in line for line in redis.lines if line) == 2
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    with contextlib.closing(Wire(redis.path)) as wire:
        assert wire.ask("PING") == "PONG"
    Pool(redis.system.socket).detach()


def test_addresses_and_sockets_are_guarded(system, tmp_path):
    (tmp_path / "file").write_text("kept")
    for address, why in (("0.0.0.0:7000", "loopback"), ("127.0.0.1:99999", "unix:/path"),
                         ("unix:", "1 to 107 bytes"), (f"unix:{tmp_path}/file", "not a socket"),
                         ("nowhere", "unix:/path")):
        out = subprocess.run([f"{BIN}/fabricmgrd", "--socket", system.socket, "--size", "16M",
                              "--redis", address], capture_output=True, text=True, check=False,
                             timeout=20)
        assert out.returncode == 1 and why in out.stderr, (address, out)
    assert (tmp_path / "file").read_text() == "kept"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag in ("--redis", "--metrics"):
            out = subprocess.run([f"{BIN}/fabricmgrd", "--socket", system.socket, "--size", "16M", flag,
                                  address], capture_output=True, text=True, check=False, timeout=20)
            assert out.returncode == 1 and address in out.stderr and "choose another port" in out.stderr, out
    daemon = system.daemon("16M", "--redis", f"unix:{tmp_path}/made/redis.sock")  # and its folder
    words = [line.split()[2] for line in daemon.lines if line]  # behind the code
    assert words.index("version") < words.index("redis:") < words.index("ready")
    assert daemon.stop() == 0
    path = f"{system.folder}/redis.sock"
    daemon = system.daemon("16M", "--redis", f"unix:{path}", "--redis", "127.0.0.1:0")
    port = int(next(line for line in daemon.lines if "redis: 127.0.0.1:" in line).rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
        link.sendall(b"PING\r\n")
        assert link.recv(100) == b"+PONG\r\n"
    assert os.stat(path).st_mode & 0o777 == 0o600
    daemon.kill()
    daemon.process.wait()
    daemon = system.daemon("16M", "--redis", f"unix:{path}")  # takes the dead one's place
    assert daemon.stop() == 0
    assert not os.path.exists(path)


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="redis-tools is not installed")
def test_redis_own_programs(redis):
    def cli(*arguments):
        return subprocess.run(["redis-cli", "-s", redis.path, *arguments], capture_output=True,
                              text=True, check=True, timeout=20).stdout.strip()

    assert cli("SET", "a", "b") == "OK" and cli("GET", "a") == "b"
    assert cli("-3", "GET", "absent") == ""
    assert cli("--scan") == "a"
    out = subprocess.run(["redis-benchmark", "-s", redis.path, "-t", "ping,set,get", "-n", "2000",
                          "-c", "8", "-P", "8", "-r", "100", "-q", "-d", "2000"],
                         capture_output=True, text=True, check=True, timeout=120).stdout
    assert out.count("requests per second") == 4, out
