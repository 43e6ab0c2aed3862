# SPDX-License-Identifier: Apache-2.0
"""What systemd gets: units that it takes without complaint and that keep the daemon in, users, folders;
and what the daemon tells it (sd_notify): ready, reload, watchdog, end."""
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

from conftest import BIN, TOP

UNITS = ["fabricmgrd.service", "fabricmgr-router.service", "fabricmgr-worker@.service"]
# Of systemd-analyze security, where 10 is without any protection; what they have now, rounded up.
EXPOSURE = {"fabricmgrd.service": 1.7, "fabricmgr-router.service": 2.1, "fabricmgr-worker@.service": 1.5}

SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000

needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Installed with a prefix that is there: systemd-analyze looks for the programs."""
    prefix = tmp_path_factory.mktemp("prefix")
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "VARIANT")}
    subprocess.run(["make", "-s", "install", f"PREFIX={prefix}", "DESTDIR=/"], cwd=TOP, env=environment,
                   check=True, capture_output=True, timeout=300)
    return prefix


def analyze(*arguments):
    return subprocess.run(["systemd-analyze", *arguments], text=True, capture_output=True, check=False, timeout=120)


@needs_systemd
def test_systemd_understands_every_line(root):
    out = analyze("--man=no", "--recursive-errors=no", "verify",
                  *(f"{root}/lib/systemd/system/{unit}" for unit in UNITS))
    said = [line for line in (out.stdout + out.stderr).splitlines() if "fabricmgr" in line]
    assert out.returncode == 0 and not said, said


@needs_systemd
def test_a_wrong_line_would_be_noticed(root, tmp_path):
    with open(f"{root}/lib/systemd/system/{UNITS[0]}", encoding="utf-8") as file:
        (tmp_path / "wrong.service").write_text(file.read().replace("RestrictRealtime=", "RestrictReeltime="))
    out = analyze("--man=no", "verify", f"{tmp_path}/wrong.service")
    assert "RestrictReeltime" in out.stdout + out.stderr


@needs_systemd
@pytest.mark.parametrize("unit", UNITS)
def test_the_sandbox_holds_its_level(root, unit):
    out = analyze("--no-pager", "security", "--offline=true", f"--threshold={round(EXPOSURE[unit] * 10)}",
                  f"{root}/lib/systemd/system/{unit}")
    level = re.search(r"Overall exposure level for .*: ([\d.]+)", out.stdout)
    assert out.returncode == 0 and float(level[1]) <= EXPOSURE[unit], out.stdout[-3000:] + out.stderr


@needs_systemd
def test_users_and_folders_are_made(root, tmp_path):
    if not shutil.which("systemd-sysusers") or os.geteuid():
        pytest.skip("needs systemd-sysusers and root")
    os.makedirs(tmp_path / "etc")
    for command in (["systemd-sysusers"], ["systemd-tmpfiles", "--create"]):
        kind = command[0].removeprefix("systemd-")
        done = subprocess.run([*command, f"--root={tmp_path}", f"{root}/lib/{kind}.d/fabricmgr.conf"], text=True,
                              capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
    groups = dict(line.split(":", 1) for line in (tmp_path / "etc/group").read_text().splitlines())
    assert groups["fabricmgr"].endswith(":fabricmgr-engine")
    users = {line.split(":")[0]: int(line.split(":")[2]) for line in (tmp_path / "etc/passwd").read_text().splitlines()}
    assert {"fabricmgr", "fabricmgr-engine"} <= set(users)
    state = os.stat(tmp_path / "var/lib/fabricmgr")
    assert (state.st_mode & 0o777, state.st_uid) == (0o700, users["fabricmgr"])
    assert os.stat(tmp_path / "run/fabricmgr").st_mode & 0o777 == 0o755


def test_units_name_flags_and_variables_that_are_there():
    with open(f"{TOP}/packaging/etc/engine.env", encoding="utf-8") as file:
        given = set(re.findall(r"^([A-Z_]+)=", file.read(), re.M))
    used = set()
    for unit in UNITS:
        with open(f"{TOP}/packaging/systemd/{unit}.in", encoding="utf-8") as file:
            command = re.search(r"^ExecStart=@BIN@/(.*)$", file.read(), re.M)[1].split()
        used |= {re.sub(r"\W", "", word) for word in command if word.startswith("$")}
        words = [word for word in command[1:2] if not word.startswith("-")]
        text = subprocess.run([f"{BIN}/{command[0]}", *words, "--help"], text=True, capture_output=True, check=True).stdout
        assert all(flag in text for flag in command if flag.startswith("--"))
    assert used == given


# ---- what the daemon tells ----

class Manager:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.settimeout(60)
        self.path = path.replace("\0", "@")

    def next(self, *names):
        """The next message with one of @names, as {name: value}; those before it are dropped."""
        while True:
            message = dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())
            if any(name in message for name in names):
                return message


def start(system, manager, **environment):
    return system.start(f"{BIN}/fabricmgrd", "--socket", system.socket, "--size", "16M", "--memory", "memfd",
                        env={"NOTIFY_SOCKET": manager.path, **environment})


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_it_tells_of_ready_reload_and_end(system, kind):
    manager = Manager(f"{system.folder}/notify" if kind == "path" else f"\0fabricmgr-test-{os.getpid()}")
    process = start(system, manager)
    assert manager.next("READY") == {"READY": "1", "STATUS": f"serving {system.socket}"}
    assert system.control("info")["daemon_pid"] == process.pid  # ready means that clients can attach
    process.kill(signal.SIGHUP)
    told = manager.next("RELOADING")
    assert abs(int(told["MONOTONIC_USEC"]) / 1e6 - time.clock_gettime(time.CLOCK_MONOTONIC)) < 60
    assert manager.next("READY")["STATUS"] == "the configuration was read again"
    assert process.stop() == 0
    assert manager.next("STOPPING") == {"STOPPING": "1"}
    assert not any("FM1013" in line for line in process.lines if line)


def test_the_watchdog_hears_only_of_a_pool_that_answers(system):
    manager = Manager(f"{system.folder}/notify")
    process = start(system, manager, WATCHDOG_USEC="300000")
    for _ in range(3):
        assert re.fullmatch(r"0 of 16 MiB used, 1 clients", manager.next("WATCHDOG")["STATUS"])
    # A wrong pid: the variable is meant for another process.
    process.stop()
    manager.next("STOPPING")
    process = start(system, manager, WATCHDOG_USEC="1000", WATCHDOG_PID="1")
    manager.next("READY")
    process.kill(signal.SIGHUP)
    assert "WATCHDOG" not in manager.next("WATCHDOG", "RELOADING")
    assert process.stop() == 0


def ptrace(request, pid):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(ctypes.c_long(request), ctypes.c_long(pid), None, None):
        raise OSError(ctypes.get_errno(), f"ptrace {request:#x}")


def test_a_pool_that_hangs_is_not_alive(system):
    manager = Manager(f"{system.folder}/notify")
    process = start(system, manager, WATCHDOG_USEC="300000")
    manager.next("WATCHDOG")
    try:
        ptrace(SEIZE, process.pid)
    except OSError as error:
        pytest.skip(f"another process may not be traced here: {error}")
    ptrace(INTERRUPT, process.pid)  # its first thread alone, the one that serves
    os.waitpid(process.pid, WALL)
    process.wait_for("FM1014 the pool does not answer")
    manager.socket.setblocking(False)
    with pytest.raises(BlockingIOError):  # what was told before, and then nothing
        while True:
            manager.socket.recv(4096)
    manager.socket.settimeout(60)
    ptrace(DETACH, process.pid)
    manager.next("WATCHDOG")
    assert process.stop() == 0


def test_without_a_manager_nothing_is_told(system):
    process = system.start(f"{BIN}/fabricmgrd", "--socket", system.socket, "--size", "16M",
                           env={"NOTIFY_SOCKET": f"{system.folder}/nobody", "WATCHDOG_USEC": "300000"})
    process.wait_for(r"FM1013 the service manager at .*/nobody is not told: No such file")
    process.kill(signal.SIGHUP)
    process.wait_for("FM1303")
    assert process.stop() == 0
    assert sum("FM1013" in line for line in process.lines if line) == 1
