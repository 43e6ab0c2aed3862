# SPDX-License-Identifier: Apache-2.0
"""A daemon with an NVMe log and clients that are killed beside it; killing, and looking at what is left.

The tester is a client itself: it keeps blocks of which it has seen that the log has them, and wants each
back after every restart. Used by test_nvme_kills.py alone.
"""
import contextlib
import ctypes as c
import json
import mmap
import os
import random
import select
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
BIN = f"{TOP}/build/kill/bin"
os.environ["FABRICMGR_BIN"] = BIN
sys.path[:0] = [f"{TOP}/tests/process", HERE]

from every_call import EveryCall  # noqa: E402
from kill_file import KillFile  # noqa: E402
from node import Unclean  # noqa: E402
from nvme_clients import BEAT, SLOTS  # noqa: E402
from pool_client import bytes_of  # noqa: E402

HUNG_S = 60
KEPT_MAX = 200
LOG = os.environ.get("NVME_SIZE", "2G")  # so that nothing is given up for space: see `reclaimed`


class ClientInfo(c.Structure):
    _fields_ = [(name, c.c_uint32) for name in ("id", "pid", "uid", "flags", "leases", "staged")] + [
        ("name", c.c_char * 48)]


class Client:
    def __init__(self, pid, is_plain):
        self.pid, self.is_plain = pid, is_plain
        self.fd = os.pidfd_open(pid)

    def is_dead(self, wait_s=0):
        return bool(select.select([self.fd], [], [], wait_s)[0])

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signal.SIGKILL)


class NvmeNode:
    def __init__(self, folder, seed, fault=None, n_clients=5):
        self.folder, self.chance, self.fault = folder, random.Random(seed), fault
        self.socket, self.file = f"{folder}/pool.sock", KillFile(f"{folder}/kills")
        self.clients, self.n_started, self.waits_s = [None] * n_clients, 0, []
        self.by_step, self.by_chance, self.not_reached = {}, {"client": 0, "daemon": 0}, 0
        self.barren = {}  # how often a step was armed in vain
        self.kept, self.next_kept, self.returned, self.reclaimed = {}, 10 ** 6, 0, 0
        self.daemon, self.pool, self.plain, self.checked = None, None, None, 0
        with open(f"{folder}/beats", "w+b") as file:
            file.truncate(BEAT.size * SLOTS)
            self.beats = mmap.mmap(file.fileno(), BEAT.size * SLOTS)
        open(f"{folder}/faults", "w", encoding="utf-8").close()
        self.start_daemon()
        self.nursery = subprocess.Popen(
            [sys.executable, "-B", f"{HERE}/nvme_clients.py", self.socket, f"{folder}/beats", f"{folder}/faults"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment("client"))
        self.revive()
        self.all_go_on()

    def environment(self, role):
        return {**os.environ, "FABRICMGR_KILL_FILE": self.file.path, "FABRICMGR_KILL_ROLE": role,
                **({"FABRICMGR_FAULT": self.fault} if self.fault else {})}

    # ---- life ----

    def start_daemon(self):
        ready, write = os.pipe()
        with open(f"{self.folder}/daemon.log", "ab") as log:
            self.daemon = subprocess.Popen(
                [f"{BIN}/fabricmgrd", "--socket", self.socket, "--size", "32M", "--memory", "memfd", "--nvme",
                 f"{self.folder}/log", "--nvme-size", LOG, "--adopted", "64M", "--ready-fd", str(write)], pass_fds=[write],
                stderr=log, env=self.environment("daemon"))
        os.close(write)
        is_ready = select.select([ready], [], [], 60)[0] and os.read(ready, 1) == b"r"
        os.close(ready)
        if not is_ready and self.daemon.poll() != -signal.SIGKILL:
            with open(f"{self.folder}/daemon.log", encoding="utf-8") as log:
                raise Unclean("the daemon does not start: " + log.read()[-1000:])
        if not is_ready:  # killed at a step of its start
            self.start_daemon()
            return
        end = time.monotonic() + 30
        while True:
            try:
                self.pool = EveryCall(self.socket)
                break
            except OSError as error:
                if time.monotonic() > end:
                    raise Unclean(f"nobody can attach: {error}") from error
                time.sleep(0.01)
        self.want_back()

    def revive(self):
        for slot, client in enumerate(self.clients):
            if client and not client.is_dead():
                continue
            if client:
                os.close(client.fd)
            self.n_started += 1
            kind = {0: "devices", 3: "adopter"}.get(self.n_started % 8, "plain")
            self.nursery.stdin.write(f"{slot} {self.chance.randrange(1 << 30)} {kind}\n")
            self.nursery.stdin.flush()
            self.clients[slot] = Client(int(self.nursery.stdout.readline()), kind == "plain")

    def daemon_died(self):
        """Collects it and starts another; the tester's own attachment goes with it."""
        self.daemon.wait(30)
        self.pool.detach()
        self.start_daemon()

    # ---- durable blocks ----

    def keep_one(self):
        """Puts a block and returns when the log has it: out of memory, it is fetched back."""
        n = self.next_kept
        self.next_kept += 1
        length = self.chance.choice((4096, 5000, 70000))
        end = time.monotonic() + HUNG_S
        self.pool.put_copied(n, length)
        while True:
            self.pool.lib.fm_pool_evict(self.pool.handle, c.c_uint64(2 ** 64 - 1), None)
            if not self.pool.match(n):
                data = self.pool.get_fetched(n)
                if data == bytes_of(n, length):
                    break
                if data:
                    raise Unclean(f"a wrong byte in block {n}")
                self.pool.put_copied(n, length)  # gone before it was written
            if time.monotonic() > end:
                raise Unclean(f"block {n} was not stored in {HUNG_S} s")
            time.sleep(0.002)
        self.kept[n] = length
        self.reclaimed = max(self.reclaimed, self.info()["nvme"]["reclaimed"])
        if len(self.kept) > KEPT_MAX:
            n = self.chance.choice(sorted(self.kept))
            del self.kept[n]
            self.pool.remove(n)

    def want_back(self):
        for n, length in self.kept.items():
            data = self.pool.get_fetched(n)
            if data is None:
                raise Unclean(f"block {n} was durable and is missing after a restart (before it, "
                              f"{self.reclaimed} were given up for space)")
            if data != bytes_of(n, length):
                raise Unclean(f"a wrong byte in block {n} after a restart")
            self.returned += 1

    # ---- killing ----

    @property
    def n_kills(self):
        return sum(self.by_step.values()) + sum(self.by_chance.values())

    def kills_of(self, role):
        return self.by_chance[role] + sum(n for name, n in self.by_step.items() if name.startswith(role))

    def kill_client(self):
        client = self.chance.choice(self.clients)
        if client.is_dead():
            return
        client.kill()
        self.by_chance["client"] += 1
        if client.is_dead(30) and client.is_plain and self.chance.random() < 0.2:
            self.time_to_free(client)

    def time_to_free(self, client):
        """From the end of a plain client's process until the daemon has what it had."""
        start, infos = time.monotonic(), (ClientInfo * 64)()
        while True:
            n = self.pool.check(self.pool.lib.fm_pool_clients(self.pool.handle, infos, c.c_size_t(64)))
            if client.pid not in [info.pid for info in infos[:n]]:
                break
            if time.monotonic() - start > 30:
                raise Unclean("what a dead client had is not free after 30 s")
        self.waits_s.append(time.monotonic() - start)

    def kill_daemon(self):
        self.daemon.kill()
        self.by_chance["daemon"] += 1
        self.daemon_died()

    def kill_at_a_step(self, role, limit=0.5, n=4):
        # What is hardly ever passed would be waited for again and again.
        steps = {name: step for name, step in self.file.steps().items()
                 if name.split()[0] == role and self.barren.get(name, 0) < 3}
        fewest = min(kills for _, _, kills in steps.values())
        names = sorted(name for name, step in steps.items() if step[2] <= fewest + 1)
        names = self.chance.sample(names, min(n, len(names)))
        for name in names:
            number, passes, _ = steps[name]
            self.file.arm(number, self.chance.randrange(1, max(2, min(30, passes // 20))))
        end = time.monotonic() + limit

        def killed():
            return {name: self.file.kills(steps[name][0]) - steps[name][2] for name in names}

        while not any(killed().values()) and time.monotonic() < end:
            time.sleep(0.001)
        for name in names:
            self.file.arm(steps[name][0], 0)
        for name, kills in killed().items():
            if kills:
                self.by_step[name] = self.by_step.get(name, 0) + kills
            elif not any(killed().values()):
                self.barren[name] = self.barren.get(name, 0) + 1
        self.not_reached += not any(killed().values())
        if role == "daemon" and any(killed().values()):
            self.daemon_died()

    def disturb(self, daemon_share):
        role = "daemon" if self.chance.random() < daemon_share else "client"
        if role == "daemon":
            self.keep_one()
        if self.chance.random() < 0.5:
            self.kill_at_a_step(role)
        elif role == "daemon":
            self.kill_daemon()
        else:
            self.kill_client()
        self.revive()
        self.complain()

    # ---- looking ----

    def complain(self):
        with open(f"{self.folder}/faults", encoding="utf-8") as file:
            text = file.read()
        if text:
            raise Unclean(text[-1500:])
        longest = max(BEAT.unpack_from(self.beats, slot * BEAT.size)[1] for slot in range(SLOTS)) / 1e9
        if longest > HUNG_S:
            raise Unclean(f"a call took {longest:.0f} s")

    def info(self):
        return self.control("status")

    def control(self, command):
        out = subprocess.run([f"{BIN}/fabricctl", "--socket", self.socket, "--json", command],
                             capture_output=True, text=True, check=False, timeout=60)
        if out.returncode:
            raise Unclean(f"fabricctl {command}: {out.stderr}{out.stdout[-600:]}")
        return json.loads(out.stdout)

    def all_go_on(self):
        """Every client makes calls: none waits for something that died."""
        before = [BEAT.unpack_from(self.beats, slot * BEAT.size)[0] for slot in range(len(self.clients))]
        end = time.monotonic() + HUNG_S
        while any(BEAT.unpack_from(self.beats, slot * BEAT.size)[0] < n + 30 for slot, n in enumerate(before)):
            self.revive()  # an armed step may kill later than it was waited for
            self.complain()
            if time.monotonic() > end:
                states = [subprocess.run(["cat", *(f"/proc/{client.pid}/{name}" for name in ("wchan", "stat"))],
                                         capture_output=True, text=True, check=False).stdout
                          for client in self.clients]
                raise Unclean(f"a client's call does not return: {states}")
            time.sleep(0.01)

    def inspect(self):
        """Every client is killed: nothing may be held, staged, quarantined, leaked or wrong."""
        self.all_go_on()
        for client in self.clients:
            client.kill()
            self.by_chance["client"] += 1
            if not client.is_dead(30):
                raise Unclean("a killed client does not end")
        end = time.monotonic() + 30
        while True:
            status, blocks = self.control("status"), self.control("ls")
            held = sum(client["leases"] for client in status["clients"])
            states = status["blocks"]
            used = sum((block["bytes"] + 4095) // 4096 * 4096 for block in blocks)
            if not held and not states["staging"] and not states["quarantine"] and not states["removed"] and \
                    len(status["clients"]) == 2 and status["used_bytes"] == used and \
                    states["sealed"] == len(blocks) and not any(status["adopted"].values()):
                break
            if time.monotonic() > end:
                raise Unclean(f"left behind: {held} leases, {states}, {len(status['clients'])} clients (2 are "
                              f"ours), {status['used_bytes']} bytes used by blocks of {used}, "
                              f"of clients' own memory {status['adopted']}")
            time.sleep(0.05)
        if self.control("verify")["bad"]:
            raise Unclean("fabricctl verify found bad blocks")
        nvme = status["nvme"]
        if nvme["checksum_errors"] or nvme["write_errors"] or nvme["read_errors"] or nvme["is_dead"]:
            raise Unclean(f"errors of the log: {nvme}")
        self.check_descriptors()
        self.complain()
        self.revive()

    def check_descriptors(self):
        """Not above what it had at the first look. Those of fabricctl take a moment to go."""
        end = time.monotonic() + 10
        while True:
            n = len(os.listdir(f"/proc/{self.daemon.pid}/fd"))
            if self.plain is None:
                time.sleep(1)
                self.plain = len(os.listdir(f"/proc/{self.daemon.pid}/fd"))
            elif n <= self.plain:
                return
            elif time.monotonic() > end:
                raise Unclean(f"the daemon has {n} descriptors open, {self.plain} in the beginning")
            time.sleep(0.01)

    def end(self):
        for client in self.clients:
            if client:
                client.kill()
                client.is_dead(30)
                os.close(client.fd)
        self.nursery.stdin.close()
        self.nursery.wait(30)
        self.nursery.stdout.close()
        self.pool.detach()
        self.daemon.kill()
        self.daemon.wait(30)

    def report(self):
        beats = [BEAT.unpack_from(self.beats, slot * BEAT.size) for slot in range(SLOTS)]
        waits = sorted(self.waits_s) or [0]
        lines = [f"{self.kills_of('client')} kills of clients, {self.kills_of('daemon')} of the daemon; "
                 f"{sum(self.by_step.values())} at {len(self.by_step)} of {len(self.file.steps())} steps, "
                 f"{self.not_reached} armed steps were not passed",
                 f"{sum(beat[0] for beat in beats)} calls, the longest {max(beat[1] for beat in beats) / 1e9:.2f} s; "
                 f"{sum(beat[2] for beat in beats) / 1e9:.2f} GB read and checked",
                 f"{self.returned} times a durable block was wanted back and came ({len(self.kept)} kept)",
                 f"staging of the dead free after {waits[len(waits) // 2] * 1e3:.1f} ms (median), "
                 f"{waits[-1] * 1e3:.1f} ms (longest of {len(waits)})"]
        return "\n".join(lines + [f"  {n:4} {name}" for name, n in sorted(self.by_step.items())])
