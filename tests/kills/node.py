# SPDX-License-Identifier: Apache-2.0
"""The node under test: launcher, kill file, users; killing, and looking at what is left of it."""
import json
import os
import random
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [f"{TOP}/tools", f"{TOP}/tests/process", HERE]

import launcher  # noqa: E402
import tiny_gguf  # noqa: E402
from clients import PoolClients, Users  # noqa: E402
from kill_file import KillFile  # noqa: E402

BIN = f"{TOP}/build/kill/bin"
ROLES = {"fabricmgrd": "daemon", "prefill worker": "prefill", "decode worker": "decode",
         "router": "router"}
# A router's death breaks off what it was answering, so it would hide much if it came often.
WEIGHTS = {"client": 2, "daemon": 2, "prefill": 3, "decode": 3, "router": 1}
WORDS = ("fabric", "pool", "lease", "block", "seal", "stage", "worker", "token", "hello", "the")


class Unclean(Exception):
    """Something was left behind, or somebody was treated wrongly; the text says what."""


def make_prompts(model, n, seed):
    """[(body, text)]: what one undisturbed process (`run`, its own pool) answers."""
    chance, prompts = random.Random(seed), []
    shared = " ".join(chance.choice(WORDS) for _ in range(40))
    for i in range(n):
        words = [chance.choice(WORDS) for _ in range(chance.randrange(3, 60))]
        prompt = (shared + " " if i % 3 else "") + " ".join(words)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": chance.randrange(20, 90),
                "temperature": 1.0, "top_k": 60, "seed": chance.randrange(1 << 31)}
        out = subprocess.run(
            [f"{BIN}/fabric-engine", "run", "-m", model, "--json", "--pool-size", "16M", "-p", prompt,
             "-n", str(body["max_tokens"]), "--temperature", "1", "--top-k", "60", "--seed",
             str(body["seed"])], capture_output=True, check=True, timeout=60)
        prompts.append((body, json.loads(out.stdout)["text"]))
    return prompts


class Launcher(launcher.System):
    """Tells the users of a router's death, so that they know why they were cut off."""

    users = None

    def on_death(self, program):
        if program is self.router and self.users:
            self.users.router_deaths += 1


class Child:
    """The daemon that a holder has started."""

    def __init__(self, holder):
        self.holder = holder

    @property
    def pid(self):
        with open(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children", encoding="utf-8") as file:
            return int((file.read().split() or [0])[0])

    def poll(self):
        return None if self.pid else 0

    def kill(self):
        pid = self.pid
        if pid:
            os.kill(pid, signal.SIGKILL)


class Node:
    """@is_held: the daemon runs under fabricmgr-holder, and every death of it keeps the pool."""

    def __init__(self, folder, seed, fault=None, n_users=4, n_pool_clients=2, is_held=False):
        self.folder, self.chance, self.is_held = folder, random.Random(seed), is_held
        self.file = KillFile(f"{folder}/kills")
        model = tiny_gguf.write(f"{folder}/tiny.gguf", layers=4, dim=256, heads=4, kv_heads=4)
        prompts = make_prompts(model, 24, seed)

        def environment(role):
            return {"FABRICMGR_KILL_FILE": self.file.path, "FABRICMGR_KILL_ROLE": role,
                    "FABRICMGR_BIN": BIN, **({"FABRICMGR_FAULT": fault} if fault else {})}

        self.system = Launcher(BIN, model, folder, size="16M", restarts_max=10000,
                               environments={name: environment(role) for name, role in ROLES.items()},
                               more={"router": ["--bypass-tokens", "40", "--bypass-ratio", "0",
                                                "--deadline", "30", "--model-name", "tiny"],
                                     "prefill worker": ["--threads", "1"],
                                     "decode worker": ["--threads", "1"]})
        if is_held:
            self.system.daemon.command[:0] = [f"{BIN}/fabricmgr-holder", "--restarts", "100000",
                                                "--pause-max", "0", "--"]
        self.system.start()
        self.users = self.system.users = Users(self.system, prompts, seed, n_users)
        self.pool_clients = PoolClients(folder, self.system.socket, environment("client"), seed,
                                        n_pool_clients)
        self.pool_clients.start()
        self.by_step, self.by_chance, self.not_reached = {}, {}, 0
        self.wait_for_steps()
        self.plain = None  # open descriptors of an undisturbed daemon

    def wait_for_steps(self, limit=60):
        """Until every role has passed some, so that each can be killed at one."""
        end = time.monotonic() + limit
        while {name.split()[0] for name in self.file.steps()} != set(WEIGHTS):
            if time.monotonic() > end:
                raise Unclean(f"only these steps were passed: {sorted(self.file.steps())}")
            time.sleep(0.01)

    # ---- killing ----

    @property
    def daemon(self):
        process = self.system.daemon.process
        return Child(process) if self.is_held else process

    @property
    def n_kills(self):
        return sum(self.by_step.values()) + sum(self.by_chance.values())

    def victims(self):
        found = {program.name: program.process for program in self.system.programs}
        found["fabricmgrd"] = self.daemon
        for process in self.pool_clients.processes:
            if process:
                found["pool client"] = process
        return found

    def kill_by_chance(self):
        victims = self.victims()
        name = self.chance.choices(sorted(victims),
                                   [WEIGHTS[ROLES.get(n, "client")] for n in sorted(victims)])[0]
        process = victims[name]
        if process.poll() is not None:
            return
        process.kill()
        self.by_chance[name] = self.by_chance.get(name, 0) + 1

    def kill_at_a_step(self, limit=2.0, n=3):
        """Arms @n of one role's steps that killed least so far and waits until one has killed."""
        steps = self.file.steps()
        role = self.chance.choices(*zip(*WEIGHTS.items()))[0]
        spared = sorted(set(WEIGHTS) - {name.split()[0] for name in self.by_step})
        if spared and self.n_kills > 25:  # chance has had its turn
            role = spared[0]
        steps = {name: step for name, step in steps.items() if name.split()[0] == role}
        fewest = min(kills for _, _, kills in steps.values())
        names = sorted(name for name, step in steps.items() if step[2] <= fewest + 1)
        names = self.chance.sample(names, min(n, len(names)))
        for name in names:
            number, passes, _ = steps[name]
            self.file.arm(number, self.chance.randrange(1, max(2, min(40, passes // 20))))

        def killed():
            return {name: self.file.kills(steps[name][0]) - steps[name][2] for name in names}

        end = time.monotonic() + limit
        while not any(killed().values()) and time.monotonic() < end:
            time.sleep(0.002)
        for name in names:
            self.file.arm(steps[name][0], 0)
        for name, kills in killed().items():
            if kills:
                self.by_step[name] = self.by_step.get(name, 0) + kills
        self.not_reached += not any(killed().values())

    def disturb(self):
        if self.chance.random() < 0.25:
            self.kill_by_chance()
        else:
            self.kill_at_a_step()
        # Sometimes the next blow falls before the wounds have healed.
        if self.chance.random() < 0.7:
            self.heal()
            self.work()
        self.pool_clients.start()
        self.complain()

    def work(self, n=3, limit=5):
        """Lets the users have @n more answers, so that there is something to disturb."""
        enough, end = self.users.counts["answered"] + n, time.monotonic() + limit
        while self.users.counts["answered"] < enough and time.monotonic() < end:
            time.sleep(0.01)

    def heal(self, limit=30):
        """Waits until every program is back and the router says that it is ready."""
        end = time.monotonic() + limit
        while True:
            try:
                if all(p.process.poll() is None for p in self.system.programs) and \
                        launcher_get(self.system.port, "/ready") == 200:
                    return
            except OSError:
                pass
            if time.monotonic() > end:
                raise Unclean("the node does not come back:\n" + "\n".join(
                    f"{p.name}: {p.tail()}" for p in self.system.programs))
            time.sleep(0.01)

    def complain(self):
        faults = self.users.faults + self.pool_clients.faults
        if faults:
            raise Unclean("\n".join(faults[:5]))
        if self.system.failure:
            raise Unclean(self.system.failure)

    # ---- looking ----

    def control(self, command):
        out = subprocess.run([*self.system.control, command], capture_output=True, text=True,
                             check=False, timeout=60)
        if out.returncode:
            raise Unclean(f"fabricctl {command}: {out.stderr}{out.stdout}")
        return json.loads(out.stdout)

    def inspect(self, last=False):
        """Nobody is using the node: nothing may be held, staged, mapped or open that should not be."""
        if not self.users.pause():
            raise Unclean("a request did not end within its deadline")
        self.pool_clients.stop()
        self.heal()
        self.touch_both_workers()
        end = time.monotonic() + (45 if last else 5)
        while True:
            status = self.control("status")
            held = sum(client["leases"] for client in status["clients"])
            blocks = status["blocks"]
            # A tail whose adopter died is on offer until it expires; the last look waits for that.
            staged = blocks["staging"] - (0 if last else blocks["offered"])
            kept = self.control("info")["kept"]
            if kept["cold_reason"]:
                raise Unclean(f"the pool was not taken over: {kept['cold_reason']}")
            if not held and not staged and not blocks["quarantine"] and not kept["clients"] and \
                    len(status["clients"]) == 4:
                break
            if time.monotonic() > end:
                raise Unclean(f"left behind: {held} leases, {kept['clients']} clients of daemons before, "
                              f"{staged} staged blocks, "
                              f"{len(status['clients'])} clients (fabricctl, router, 2 workers are 4): "
                              f"{status}")
            time.sleep(0.05)
        if self.control("verify")["bad"]:
            raise Unclean("fabricctl verify found bad blocks")
        self.check_descriptors()
        self.check_mappings()
        self.complain()
        if not last:
            self.users.go_on()
            self.pool_clients.start()

    def touch_both_workers(self):
        """A worker attaches again when it has work: give both some that is not in the pool."""
        prompt, _ = self.users.prompts[0]
        for _ in range(100):
            # Anew each time: what the decode worker computed alone is cached there, and stays so.
            salt = f"{self.chance.random()} " * 6
            body = {**prompt, "prompt": salt + prompt["prompt"], "max_tokens": 2}
            status, answer = launcher.call(self.system.port, "POST", "/v1/completions", body)
            if status == 200 and answer["fabricmgr"]["route"] == "disaggregated":
                return
            time.sleep(0.1)
        raise Unclean(f"no disaggregated answer any more: {status} {answer}")

    def check_descriptors(self):
        end = time.monotonic() + 5
        while True:  # fabricctl has gone, but the daemon may not have noticed yet
            n = len(os.listdir(f"/proc/{self.daemon.pid}/fd"))
            if n <= (self.plain or 0):
                return
            if time.monotonic() > end:
                break
            time.sleep(0.02 if self.plain else 1)
            if self.plain is None:
                self.plain = len(os.listdir(f"/proc/{self.daemon.pid}/fd"))
        raise Unclean(f"the daemon has {n} descriptors open, {self.plain} in the beginning")

    def check_mappings(self):
        """Shared memory of a dead daemon is mapped by nobody."""
        def inodes(pid):
            with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
                return {line.split()[4] for line in maps if "memfd:fabricmgr-index" in line}

        alive = inodes(self.daemon.pid)
        for program in self.system.programs[1:]:
            dead = inodes(program.process.pid) - alive
            if dead:
                raise Unclean(f"{program.name} still maps the index of a dead daemon: {dead}")

    def end(self):
        """Stops everything; Unclean when something survives."""
        self.users.end()
        self.pool_clients.stop()
        self.system.stop()
        left = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    if self.folder.encode() in file.read() and int(pid) != os.getpid():
                        left.append(pid)
            except OSError:
                pass
        if left:
            raise Unclean(f"processes were left behind: {left}")

    def report(self):
        lines = [f"{self.n_kills} kills: {sum(self.by_chance.values())} by chance, "
                 f"{sum(self.by_step.values())} at {len(self.by_step)} of "
                 f"{len(self.file.steps())} steps; {self.not_reached} armed steps were not passed",
                 f"restarts {self.system.n_restarts}; requests "
                 + ", ".join(f"{n} {what}" for what, n in self.users.counts.items())]
        lines += [f"  {n:4} {name}" for name, n in sorted(self.by_step.items())]
        lines += [f"  {n:4} {name} (by chance)" for name, n in sorted(self.by_chance.items())]
        return "\n".join(lines)


def launcher_get(port, path):
    return launcher.call(port, "GET", path)[0]
