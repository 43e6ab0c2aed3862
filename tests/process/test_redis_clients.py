# SPDX-License-Identifier: Apache-2.0
"""Clients of the Redis front end as they are used: LMCache's native client byte by byte over TCP with two
workers, redis-py, hiredis. What the front end itself does: test_redis.py.
"""
import glob
import hashlib
import os
import queue
import re
import socket
import subprocess
import threading

import pytest

redis_py = pytest.importorskip("redis", reason="python3-redis is not installed")

MIB = 1 << 20


def listening_port(pid):
    """The one TCP port of loopback on which a process listens."""
    inodes = {os.readlink(path) for path in glob.glob(f"/proc/{pid}/fd/*") if os.path.lexists(path)}
    with open(f"/proc/{pid}/net/tcp", encoding="ascii") as file:
        found = [int(line.split()[1].split(":")[1], 16) for line in file.readlines()[1:]
                 if line.split()[3] == "0A" and f"socket:[{line.split()[9]}]" in inodes]
    assert len(found) == 1, found
    return found[0]


@pytest.fixture
def tcp(system):
    daemon = system.daemon("64M", "--redis", "127.0.0.1:0", "--redis", f"unix:{system.folder}/redis.sock",
                           "--policy", "lru")
    daemon.port, daemon.system = listening_port(daemon.pid), system
    daemon.path = f"{system.folder}/redis.sock"
    return daemon


class NativeWorker(threading.Thread):
    """One connection of LMCache's client: one request at a time, replies compared byte for byte, reads that
    wait for ever (here: until a limit that fails the test)."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.link = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.link.settimeout(60)
        self.link.connect(("127.0.0.1", port))
        self.work = queue.Queue()
        self.start()

    def run(self):
        while (task := self.work.get()) is not None:
            call, arguments, results, place = task
            try:
                results[place] = call(*arguments)
            except (OSError, AssertionError) as error:
                results[place] = error
            self.work.task_done()
        self.link.close()

    def send(self, *parts):
        head = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts[:2])
        if len(parts) == 3:  # header, payload and end go out as three pieces of one call
            self.link.sendall(head + b"$%d\r\n" % len(parts[2]))
            self.link.sendall(parts[2])
            self.link.sendall(b"\r\n")
        else:
            self.link.sendall(head)

    def take(self, n):
        data = bytearray()
        while len(data) < n:
            got = self.link.recv(min(n - len(data), MIB))
            assert got, "the server closed the connection"
            data += got
        return bytes(data)

    def set(self, key, value):
        self.send(b"SET", key, value)
        assert self.take(5) == b"+OK\r\n"
        return True

    def exists(self, key):
        self.send(b"EXISTS", key)
        reply = self.take(4)
        assert reply in (b":1\r\n", b":0\r\n"), reply
        return reply == b":1\r\n"

    def get(self, key, length):
        """A fixed header is awaited: on the shorter null reply this would wait for ever."""
        self.send(b"GET", key)
        head = b"$%d\r\n" % length
        assert self.take(len(head)) == head
        value = self.take(length)
        assert self.take(2) == b"\r\n"
        return value

    def delete(self, key):
        self.send(b"DEL", key)
        return self.take(4)


class NativeClient:
    def __init__(self, port, n_workers=2):
        self.workers = [NativeWorker(port) for _ in range(n_workers)]

    def batch(self, name, *columns):
        """Splits the keys over the workers, in turn; results in order."""
        results = [None] * len(columns[0])
        for i, arguments in enumerate(zip(*columns)):
            worker = self.workers[i % len(self.workers)]
            worker.work.put((getattr(worker, name), arguments, results, i))
        for worker in self.workers:
            worker.work.join()
        for result in results:
            assert not isinstance(result, Exception), result
        return results

    def close(self):
        for worker in self.workers:
            worker.work.put(None)
            worker.join(20)


def value_of(key, length):
    return (hashlib.sha256(key).digest() * (length // 32 + 1))[:length]


def test_lmcaches_client_with_two_workers_never_waits(tcp):
    """More than the pool holds: what EXISTS told of is there for the GET, and the keys go over both workers."""
    client, length = NativeClient(tcp.port), 1 * MIB
    keys = [b"model@00000000@0@%s" % hashlib.sha256(b"%d" % i).hexdigest().encode()
            for i in range(80)]
    for first in range(0, 80, 16):
        batch = keys[first:first + 16]
        assert all(client.batch("set", batch, [value_of(key, length) for key in batch]))
    told = [key for key, there in zip(keys, client.batch("exists", keys)) if there]
    assert 8 <= len(told) < 80
    others = [b"other %d" % i for i in range(64)]
    assert all(client.batch("set", others, [bytes(length)] * 64))
    assert client.batch("get", told, [length] * len(told)) == [value_of(key, length) for key in told]
    assert not any(client.batch("exists", [b"absent %d" % i for i in range(32)]))
    assert set(client.batch("delete", told[:4])) <= {b":1\r\n", b":0\r\n"}
    assert not any(client.batch("exists", told[:4]))
    client.close()
    assert tcp.system.control("status")["blocks"]["staging"] == 0


def test_redis_py_over_either_door(tcp):
    for client in (redis_py.Redis(port=tcp.port, socket_timeout=30),
                   redis_py.Redis(unix_socket_path=tcp.path, socket_timeout=30)):
        assert client.ping()
        # As LMCache's older connector has it: two keys for each chunk, 28 bytes of metadata.
        for i in range(20):
            assert client.set(f"m@1@0@{i}kv_bytes", value_of(b"%d" % i, 200000))
            assert client.set(f"m@1@0@{i}metadata", b"%28d" % i)
        assert client.get("m@1@0@7kv_bytes") == value_of(b"7", 200000) and client.get("absent") is None
        assert client.exists("m@1@0@7kv_bytes", "absent") == 1 and client.strlen("m@1@0@7metadata") == 28
        assert client.mget("m@1@0@3metadata", "absent") == [b"%28d" % 3, None]
        pipe = client.pipeline(transaction=False)
        for i in range(10000):
            pipe.set(f"p{i % 500}", b"%d" % i)
        assert pipe.execute() == [True] * 10000
        assert client.get("p499") == b"9999"
        assert sorted(client.scan_iter("p49?")) == [b"p49%d" % i for i in range(10)]
        with pytest.raises(redis_py.ResponseError, match="at most 4194304"):
            client.set("long", bytes(4 * MIB + 1))
        with pytest.raises(redis_py.ResponseError, match="unknown command"):
            client.execute_command("LPUSH", "a", "b")
        assert client.delete("p1", "p2") == 2 and client.dbsize() > 500
        assert client.flushall() and client.dbsize() == 0
        client.close()


HIREDIS = r"""
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv)
{
	static char value[2000000];
	redisContext *c = argc > 1 ? redisConnectUnix(argv[1]) : NULL;
	redisReply *r;
	if (!c || c->err)
		return 1;
	memset(value, 'v', sizeof(value));
	r = redisCommand(c, "SET %s %b", "key", value, sizeof(value));
	if (!r || r->type != REDIS_REPLY_STATUS || strcmp(r->str, "OK"))
		return 2;
	freeReplyObject(r);
	r = redisCommand(c, "GET key");
	if (!r || r->type != REDIS_REPLY_STRING || r->len != sizeof(value) || memcmp(r->str, value, r->len))
		return 3;
	freeReplyObject(r);
	r = redisCommand(c, "GET absent");
	if (!r || r->type != REDIS_REPLY_NIL)
		return 4;
	freeReplyObject(r);
	for (int i = 0; i < 10000; i++)
		redisAppendCommand(c, "EXISTS %s", i % 2 ? "key" : "absent");
	for (int i = 0; i < 10000; i++) {
		if (redisGetReply(c, (void **)&r) != REDIS_OK || r->type != REDIS_REPLY_INTEGER || r->integer != i % 2)
			return 5;
		freeReplyObject(r);
	}
	puts("good");
	redisFree(c);
	return 0;
}
"""


def test_a_program_with_hiredis(tcp, tmp_path):
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "hiredis"], capture_output=True, text=True,
                           check=False)
    if flags.returncode:
        pytest.skip("libhiredis-dev is not installed")
    (tmp_path / "client.c").write_text(HIREDIS)
    # Its flags name the folder of the header itself.
    subprocess.run(["gcc", "-o", f"{tmp_path}/client", f"{tmp_path}/client.c",
                    *re.sub(r"-D\S+", "", flags.stdout).split()], check=True, timeout=60)
    out = subprocess.run([f"{tmp_path}/client", tcp.path], capture_output=True, text=True, check=False, timeout=60)
    assert (out.returncode, out.stdout) == (0, "good\n"), out
