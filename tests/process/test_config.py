# SPDX-License-Identifier: Apache-2.0
"""fabricmgrd's configuration file: what it takes, what it refuses and how, --check, and the reload
by SIGHUP, which is whole or not at all."""
import os
import re
import signal
import subprocess

import pytest

from conftest import BIN, TOP

EXAMPLE = f"{TOP}/packaging/etc/fabricmgrd.conf"


def daemon(*arguments):
    return subprocess.run([f"{BIN}/fabricmgrd", *arguments], capture_output=True, text=True,
                          check=False, timeout=20)


def check(path, text, *more):
    path.write_text(text)
    return daemon("--config", str(path), "--check", *more)


def lines(out):
    """key = value lines of --check: {(section, key): [(value, source)]}"""
    found, section = {}, ""
    for line in out.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif match := re.fullmatch(r"([a-z-]+) = (.*) ; (.*)", line):
            found.setdefault((section, match[1]), []).append((match[2], match[3]))
    return found


def file_flags():
    """Flags of --help that have a key."""
    flags = set(re.findall(r"^  --([a-z-]+)", daemon("--help").stdout, re.M))
    return flags - {"config", "check", "forget", "ready-fd", "version", "help"}


# ---- what it takes ----

def test_the_example_has_every_key_and_its_defaults(tmp_path):
    with open(EXAMPLE, encoding="utf-8") as file:
        text = file.read()
    (tmp_path / "password").write_text("secret\n")
    text = text.replace("/etc/fabricmgr/redis.password", str(tmp_path / "password"))
    text = text.replace("/var/lib/fabricmgr/log", str(tmp_path / "log")).replace("size = 64G", "size = 257M")
    bare = check(tmp_path / "empty.conf", "")
    given = check(tmp_path / "all.conf", re.sub(r"^#(?=[a-z-]+ = )", "", text, flags=re.M))
    assert bare.returncode == 0 and given.returncode == 0, given.stderr
    found = lines(given.stdout)
    assert sum(len(values) for values in found.values()) == \
        len(re.findall(r"^#[a-z-]+ = ", text, re.M))
    assert len(found) == len(file_flags())
    for name, values in lines(bare.stdout).items():
        assert [value for value, _ in values] == [value for value, _ in found[name]], name


def test_what_check_prints_is_a_configuration_file(tmp_path):
    first = check(tmp_path / "a.conf", "[pool]\nsize = 16M\n[redis]\nlisten = unix:/a\nlisten = unix:/b\n")
    second = check(tmp_path / "b.conf", first.stdout)
    assert first.returncode == second.returncode == 0
    values = [{name: [value for value, _ in found] for name, found in lines(out.stdout).items()}
              for out in (first, second)]
    assert values[0] == values[1]
    assert values[0]["redis", "listen"] == ["unix:/a", "unix:/b"]


def test_flags_win_over_the_file(tmp_path):
    text = "[pool]\nsize = 1T\nentries = 7\n[redis]\nlisten = unix:/a\nlisten = unix:/b\n"
    out = check(tmp_path / "a.conf", text, "--size", "16M", "--redis", "unix:/c")
    assert out.returncode == 0, out.stderr
    found = lines(out.stdout)
    assert found["pool", "size"] == [("16M", "--size")]
    assert found["pool", "entries"] == [("7", "line 3")]
    assert found["redis", "listen"] == [("unix:/c", "--redis")]


def test_blanks_comments_and_line_ends_do_not_matter(tmp_path):
    out = check(tmp_path / "a.conf", "\ufeff; one\n# two\n\n  [pool]\r\n\tsize=16M ; three\r\n   policy : s3fifo")
    assert out.returncode == 0, out.stderr
    found = lines(out.stdout)
    assert found["pool", "size"][0][0] == "16M" and found["pool", "policy"][0][0] == "s3fifo"


def test_byte_order_marks_and_blanks_before_the_first_section_do_not_matter(tmp_path):
    for before in ("\ufeff", "\ufeff\ufeff", " \ufeff\t\ufeff"):
        done = check(tmp_path / "conf", f"{before}[tenant pool]\n\tmax = 64M\nusers = 0\ngroup = default\n")
        assert done.returncode == 0 and "[tenant pool]" in done.stdout, done.stderr


def test_the_daemon_serves_what_the_file_says(system):
    path = f"{system.folder}/d.conf"
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"[pool]\nsocket = {system.socket}\nsize = 16M\nmemory = memfd\npolicy = s3fifo\n")
    process = system.start(f"{BIN}/fabricmgrd", "--config", path)
    process.wait_for(re.escape(f"configuration: {path}"))
    process.wait_for(r"\bready$")
    info = system.control("info")
    assert (info["total_bytes"], info["policy"]) == (16 << 20, "s3fifo")
    assert process.stop() == 0


# ---- what it refuses ----

@pytest.mark.parametrize("text, line, words", [
    ("[poll]\nsize = 16M\n", 1, ("no section [poll]", "did you mean [pool]?")),
    ("[wrong]\nsize = 16M\n", 1, ("[wrong]", "[pool], [nvme], [redis]")),
    ("[pool]\n[wrong]\n", 2, ("[wrong]", "[pool], [nvme], [redis]")),
    ("\n  [] ; empty\n", 2, ("no section []",)), ("\ufeff[wrong]", 1, ("no section [wrong]",)),
    ("\f\v[group wr=ong]\nsize = 16M\n", 1, ("wr=ong",)),
    ("[pool]x\n[pool ]\n", 2, ("no section [pool ]", "did you mean [pool]?")),
    (f"[{'x' * 150}]\n", 1, (f"no section [{'x' * 63}]",)),
    ("\n[pool]\nsise = 16M\n", 3, ("sise", "did you mean size?")),
    ("[pool]\nsomething = 16M\n", 2, ("something", "socket, socket-mode, size")),
    ("size = 16M\n", 1, ("size", "before the first section")),
    ("[pool]\nsize = 16M\n\nsize = 16M\n", 4, ("size", "line 2", "once")),
    ("[pool]\nsize 16M\n", 2, ("neither [section] nor key = value",)),
    ("[pool\nsize = 16M\n", 1, ("neither [section] nor key = value",)),
    ("[pool]\nsize 16M\nentries = x\n", 2, ("neither",)),
    ("[pool]\nentries = x\nsize 16M\n", 2, ("entries x", "give a whole number")),
    ("[pool]\nsize = 16M # big\n", 2, ("size 16M # big", "give a size")),
    ("[pool]\nsocket =;x\n", 2, ("socket ;x", "a blank before the comment")),
    ("[pool]\nsize =\n", 2, ("size ", "give a size")),
    ("[pool]\nmemory = disk\n", 2, ("memory disk", "best, hugetlb or memfd")),
    ("[pool]\nkeeper = me\n", 2, ("keeper me", "best, module or manager")),
    ("[pool]\npolicy = fifo\n", 2, ("policy fifo", "lru or s3fifo")),
    ("[pool]\nsocket-mode = 9\n", 2, ("socket-mode 9", "octal")),
    (f"[pool]\nsocket = {'x' * 120}\n", 2, ("socket", "1 to 107 bytes")),
    (f"[pool]\nsocket = {'x' * 500}\n", 2, ("over 198 bytes",)),
    ("[pool]\nsize = 16M\0\n", 2, ("byte 0",)),
    ("[redis]\nlisten =\n", 2, ("listen", "give unix:/path")),
    ("[redis]\n" + "listen = unix:/a\n" * 5, 6, ("listen", "at most 4 times")),
    ("[redis]\nbehind-proxy = true\n", 2, ("behind-proxy true", "no or yes")),
    ("[log]\nlevel = loud\n", 2, ("level loud", "error, warning, info or debug")),
    ("[pool]\nready-fd = 3\n", 2, ("ready-fd",)),
])
def test_what_is_wrong_is_named_with_its_line(tmp_path, text, line, words):
    for more in ((), ("--check",)):
        path = tmp_path / "a.conf"
        path.write_text(text)
        out = daemon("--config", str(path), "--socket", str(tmp_path / "s"), *more)
        assert out.returncode == 2 and out.stdout == "", out
        assert out.stderr.count("\n") == 1 and f"{path}:{line}: " in out.stderr, out.stderr
        assert all(word in out.stderr for word in words), out.stderr


def test_a_fault_of_the_file_leads_to_the_man_page_and_names_what_begins_a_comment(tmp_path):
    out = check(tmp_path / "a.conf", "[pool]\nsize = 1G # one gig\n")
    assert out.returncode == 2 and "only a blank and ; begin a comment" in out.stderr, out.stderr
    assert out.stderr.endswith("; see: man fabricmgrd\n")
    assert check(tmp_path / "a.conf", "[pool]\nsize = 16M ; sixteen\n").returncode == 0


def test_a_level_in_the_environment_that_is_none_is_named_once(tmp_path):
    out = subprocess.run([f"{BIN}/fabricmgrd", "--check", "--size", "900T"], capture_output=True, text=True,
                         timeout=60, check=False, env={**os.environ, "FABRICMGR_LOG": "bogus"})
    assert out.returncode == 1 and out.stderr.count("FM1015 FABRICMGR_LOG=bogus is no level") == 1, out.stderr


def test_a_file_that_is_not_there_is_named(tmp_path):
    out = daemon("--config", f"{tmp_path}/none.conf")
    assert out.returncode == 2 and f"{tmp_path}/none.conf: No such file" in out.stderr
    out = daemon("--config", str(tmp_path))
    assert out.returncode == 2 and str(tmp_path) in out.stderr


def test_check_shows_the_sum_and_refuses_what_does_not_fit(tmp_path):
    out = check(tmp_path / "a.conf", "[pool]\nsize = 16M\nmemory = memfd\n")
    match = re.search(r"fits: pool (\S+) MiB \+ tables (\S+) MiB for 256 blocks = (\S+) MiB", out.stdout)
    assert float(match[1]) == 16 and float(match[3]) == pytest.approx(16 + float(match[2]), abs=0.11)
    assert "memory: memfd; not the rung above: memfd was asked for" in out.stdout
    out = check(tmp_path / "a.conf", "[pool]\nsize = 15T\n")
    assert out.returncode == 1 and "size = 15T ; line 2" in out.stdout
    assert re.search(r"pool \S+ MiB \+ tables \S+ MiB = \S+ MiB, but only", out.stderr), out.stderr
    out = check(tmp_path / "a.conf", f"[pool]\nsize = 16M\n[redis]\nlisten = unix:/a\npassword-file = {tmp_path}/none\n")
    assert out.returncode == 1 and f"{tmp_path}/none: No such file" in out.stderr


def test_check_says_who_keeps_the_memory_and_that_a_keeper_is_missing(tmp_path):
    out = check(tmp_path / "a.conf", "[pool]\nsize = 16M\nkeeper = manager\n")
    assert out.returncode == 0 and "# kept by: nothing; neither systemd nor" in out.stdout
    if os.path.exists("/dev/fabricmgr"):
        pytest.skip("SKIP: this machine has the kernel module: tests/vm/tests/pool.c is about it")
    out = check(tmp_path / "a.conf", "[pool]\nsize = 16M\nkeeper = module\n")
    assert out.returncode == 1 and "FM1011 /dev/fabricmgr: No such file" in out.stderr, out.stderr
    out = daemon("--config", f"{tmp_path}/a.conf", "--socket", f"{tmp_path}/s")
    assert out.returncode == 1 and "FM1009 /dev/fabricmgr: No such file" in out.stderr, out.stderr
    out = daemon("--forget")
    assert out.returncode == 1 and "fabricmgr.ko is not loaded" in out.stderr, out.stderr


@pytest.mark.parametrize("listen, words", [
    ("unix:", "the path has 1 to"), (f"unix:/{'x' * 120}", "the path has 1 to"), ("nowhere", "give unix:/path or an IPv4"),
    ("127.0.0.1:70000", "give unix:/path or an IPv4"), ("[::1]:6379", "give unix:/path or an IPv4"),
    ("0.0.0.0:6379", "not loopback: that needs a password (--redis-password-file: missing)")])
def test_check_looks_at_the_addresses_of_redis(tmp_path, listen, words):
    text = f"[pool]\nsize = 16M\nsocket = {tmp_path}/s\n[redis]\nlisten = 127.0.0.1:0\nlisten = {listen}\n"
    out = check(tmp_path / "a.conf", text)
    assert out.returncode == 1 and f"listen = {listen} ; line 6" in out.stdout
    assert "FM1011" in out.stderr and words in out.stderr and out.stderr.count("\n") == 1, out.stderr
    # A start says the same.
    started = daemon("--config", f"{tmp_path}/a.conf")
    assert started.returncode == 1 and words in started.stderr and os.listdir(tmp_path) == ["a.conf"]


@pytest.mark.parametrize("path, size, words", [
    ("new", None, "give --nvme-size"), ("empty", None, "give --nvme-size"), ("missing/new", "320M", "No such file"),
    ("", "320M", "neither a file nor a block device"), ("new", "1M", "are needed"), ("new", "900T", "MiB left"),
    ("empty", "900T", "MiB left"), ("thesis", "320M", "not a log of this program")])
def test_check_and_the_start_refuse_the_same_of_nvme(tmp_path, path, size, words):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "thesis").write_bytes(b"not a log" * 1000)
    nvme = f"[nvme]\npath = {tmp_path}/{path}\n" + (f"size = {size}\n" if size else "")
    text = f"[pool]\nsize = 16M\nsocket = {tmp_path}/s\n{nvme}"
    out = check(tmp_path / "a.conf", text)
    assert out.returncode == 1 and "FM1011" in out.stderr and words in out.stderr, out.stderr
    started = daemon("--config", f"{tmp_path}/a.conf")
    assert started.returncode == 1 and "FM1009" in started.stderr and words in started.stderr, started.stderr
    assert sorted(os.listdir(tmp_path)) == ["a.conf", "empty", "thesis"]
    assert not (tmp_path / "empty").read_bytes() and (tmp_path / "thesis").read_bytes() == b"not a log" * 1000


def test_check_counts_the_tables_of_nvme_and_makes_no_file(tmp_path):
    text = f"[pool]\nsize = 16M\nmemory = memfd\n[nvme]\npath = {tmp_path}/log\nsize = "
    sums = []
    for size in ("320M", "640M"):
        out = check(tmp_path / "a.conf", text + size + "\n")
        assert out.returncode == 0, out.stderr
        sums.append(float(re.search(r"tables (\S+) MiB for 256 blocks and those on NVMe", out.stdout)[1]))
    assert sums[1] > sums[0] > 0 and os.listdir(tmp_path) == ["a.conf"]
    for text, words in (("[nvme]\nsize = 1G\n", "a.conf:2: a size of NVMe without path"),
                        ("[group g]\nsize = 16M\nnvme-size = 1G\n", "a.conf:3: a size of NVMe without nvme")):
        out = check(tmp_path / "a.conf", text)
        assert out.returncode == 2 and words in out.stderr, out.stderr


def test_check_starts_nothing(tmp_path):
    socket = tmp_path / "folder" / "pool.sock"
    assert daemon("--check", "--size", "16M", "--socket", str(socket)).returncode == 0
    assert os.listdir(tmp_path) == []


# ---- reload ----

class Reloading:
    """A daemon with a configuration file that tests write anew."""

    def __init__(self, system, more=""):
        self.path = f"{system.folder}/d.conf"
        self.more = f"[pool]\nsocket = {system.socket}\nsize = 16M\n{more}"
        self.write("")
        self.process = system.start(f"{BIN}/fabricmgrd", "--config", self.path)
        self.process.wait_for(r"\bready$")

    def write(self, text):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(self.more + text)

    def reload(self, text):
        """Lines that it says until the reload is done or refused."""
        self.write(text)
        seen = len(self.process.lines)
        self.process.kill(signal.SIGHUP)
        with self.process.changed:
            assert self.process.changed.wait_for(lambda: any(
                re.search(r"reload: (nothing|.* settings changed)", line or "")
                for line in self.process.lines[seen:]), 20), self.process.lines
            return self.process.lines[seen:]


def test_a_reload_changes_what_it_can_and_names_the_rest(system):
    running = Reloading(system)
    said = running.reload("entries = 99\n[redis]\nlisten = unix:/a\n[log]\nlevel = info\n")
    assert [line for line in said if "restart" in line] == [
        "fabricmgrd: warning: FM1301 reload: [pool] entries has changed: it needs a restart",
        "fabricmgrd: warning: FM1301 reload: [redis] listen has changed: it needs a restart"]
    assert said[-1].endswith("1 settings changed")
    assert system.control("status")["entries_max"] == 256
    # It still does, until it is taken back.
    assert len(running.reload("entries = 99\n[log]\nlevel = info\n")) == 2
    assert len(running.reload("[log]\nlevel = info\n")) == 1
    running.reload("[log]\nlevel = debug\n")
    seen = len(running.process.lines)
    running.write("memory = memfd\n[log]\nlevel = warning\n")
    running.process.kill(signal.SIGHUP)
    running.process.wait_for(r"memory has changed")
    said = running.reload("nonsense\n")
    assert not any("settings changed" in line for line in running.process.lines[seen:])
    assert said == [f"fabricmgrd: error: FM1302 reload: nothing is changed: {running.path}:4: neither "
                    "[section] nor key = value; a comment begins with #"]
    assert running.process.stop() == 0


@pytest.mark.parametrize("text", ["size = 8M\n", "wrong = 1\n", "[log]\nlevel = loud\n", "[", "[redis]\nnames=x\n"])
def test_a_bad_file_changes_nothing(system, text):
    running = Reloading(system)
    for _ in range(3):
        said = running.reload(text)
        assert len(said) == 1 and f"nothing is changed: {running.path}:" in said[0]
    assert running.reload("") == [f"fabricmgrd: FM1303 reload: {running.path} read, 0 settings changed"]
    assert system.control("info")["total_bytes"] == 16 << 20
    os.unlink(running.path)
    running.process.kill(signal.SIGHUP)
    running.process.wait_for("nothing is changed: .*No such file")
    assert running.process.stop() == 0


def test_a_pipe_in_the_file_s_place_holds_nothing_up(system):
    running = Reloading(system)
    os.unlink(running.path)
    os.mkfifo(running.path)
    running.process.kill(signal.SIGHUP)
    running.process.wait_for("nothing is changed: .*not a regular file")
    assert running.process.stop() == 0


def test_a_reload_takes_another_password(system):
    from test_redis import Wire
    secret, other, path = (f"{system.folder}/{name}" for name in ("secret", "other", "redis.sock"))
    for name in (secret, other):
        with open(name, "w", encoding="utf-8") as file:
            file.write(f"{os.path.basename(name)}-1\n")
    redis = f"[redis]\nlisten = unix:{path}\npassword-file = "
    with_password = Reloading(system, redis + secret + "\n")
    early = Wire(path)
    assert early.ask("AUTH", "secret-1") == "OK"

    def answers(password):
        wire = Wire(path)
        answer = wire.ask("AUTH", password)
        wire.close()
        return answer == "OK"

    with open(secret, "w", encoding="utf-8") as file:
        file.write("secret-2\n")
    assert answers("secret-1") and not answers("secret-2")
    with_password.reload("")
    assert answers("secret-2") and not answers("secret-1")
    with_password.more = with_password.more.replace(secret, other)
    assert with_password.reload("")[-1].endswith("1 settings changed")
    assert answers("other-1") and not answers("secret-2")
    # A file that is empty or gone leaves the password as it is; none at all needs a restart.
    open(other, "w", encoding="utf-8").close()
    assert "first line must be a password" in with_password.reload("")[0]
    os.unlink(other)
    assert "No such file" in with_password.reload("")[0]
    with_password.more = with_password.more.replace(f"password-file = {other}\n", "")
    assert "restart" in with_password.reload("")[0]
    assert answers("other-1") and early.ask("PING") == "PONG"
    early.close()
    assert with_password.process.stop() == 0


# ---- where the log goes ----

def test_the_journal_gets_priorities(system, tmp_path):
    path = tmp_path / "journal"
    with open(path, "w", encoding="utf-8") as file:
        status = os.fstat(file.fileno())
        for stream, flags, mark in ((f"{status.st_dev}:{status.st_ino}", (), "<3>"), ("1:2", (), ""), (None, (), ""),
                                    ("junk", (), ""), (None, ("--log-target", "journal"), "<3>"),
                                    (f"{status.st_dev}:{status.st_ino}", ("--log-target", "stderr"), "")):
            environment = {k: v for k, v in os.environ.items() if k != "JOURNAL_STREAM"}
            if stream:
                environment["JOURNAL_STREAM"] = stream
            file.truncate(0)
            file.seek(0)
            subprocess.run([f"{BIN}/fabricmgrd", "--size", "15T", "--check", *flags], stdout=subprocess.DEVNULL,
                           stderr=file, env=environment, check=False, timeout=20)
            assert path.read_text().startswith(f"{mark}fabricmgrd: error: FM1011 pool "), (stream, flags)
