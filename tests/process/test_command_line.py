# SPDX-License-Identifier: Apache-2.0
"""Command lines of every program: each flag with values that it must not take, help, version,
missing and unknown flags, and output that cannot be written. What is wrong is said in one line that
names the flag, the value and what is allowed, with exit status 2. A flag that a program's help shows
and that has no entry here fails the test, so a new flag brings its own.
"""
import os
import re
import subprocess

import pytest

from conftest import BIN, TOP

NUMBER = ("", "-1", "abc", "1.5", "1x", " 1", "+1", "0x10", "99999999999999999999999")
FRACTION = ("", "abc", "1x", "nan", "inf")
SIZE = ("", "abc", "-1", "0", "1", "1M", "5X", "5MM", "512 M", "99999999999999999999G", "1.5G")
SCAN = ("", "abc", "-1", "5X", "5MM", "512 M", "99999999999999999999G", "1.5G")
LISTEN = ("", "foo", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536",
          "127.0.0.1:-1", "nowhere.example:80", "0.0.0.0:80", "[::]:80", "[::1:80")
ADDRESS = ("", "foo", "unix:", "unix:" + "x" * 108, "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:x",
           "10.0.0.1:80", "nowhere.example:80", ":80")
IDS = ("", "1,2,x", "x", "1,,2", "1,", ",1", "-1", "4294967296", "1 2")
USERS = ("", ",", "nosuchuser", "1,nosuchuser", "4294967295")
ANY = ()        # any text may be right: the program finds out when it uses it
SWITCH = None   # takes no value

ENGINE = {"--model": ANY, "--precision": ("", "q4", "Q8", "fp16"), "--kv": ("", "q8", "F16", "f64"),
          "--threads": (*NUMBER, "0", "65"), "--isa": ("", "sse", "AVX2", "neon"),
          "--chunk": (*NUMBER, "0", "65537"), "--max-batch": (*NUMBER, "0", "257"),
          "--pool-socket": ANY, "--pool-size": SIZE, "--logits-log": ANY,
          "--help": SWITCH, "--version": SWITCH}
FRONT = {"--listen": LISTEN, "--tls": ("", "none", "on"), "--model-name": ANY,
         "--deadline": (*NUMBER, "0", "86401"), "--max-requests": (*NUMBER, "0", "4097"),
         "--drain-seconds": (*NUMBER, "86401")}
COMMANDS = {
    "fabric-engine run": {
        **ENGINE, "--prompt": ANY, "--chat": SWITCH, "--tokens": IDS, "--teacher": IDS,
        "--max-tokens": (*NUMBER, "0", "1048577"), "--temperature": (*FRACTION, "-0.1", "9", "2.1"),
        "--top-k": (*NUMBER, "4294967296"), "--top-p": (*FRACTION, "-0.1", "1.1"),
        "--min-p": (*FRACTION, "-0.1", "1.1"), "--seed": NUMBER,
        "--repetition-penalty": (*FRACTION, "0", "-1", "101"),
        "--frequency-penalty": (*FRACTION, "-2.1", "2.1"),
        "--presence-penalty": (*FRACTION, "-2.1", "2.1"),
        "--logit-bias": ("", "5", "5:", "x:1", ":1", "5:101", "5:nan", "5:1,", "-5:1", "5:1;6:1",
                         "4294967296:1"),
        "--min-tokens": (*NUMBER, "129", "1048577"), "--stop-token-ids": (*IDS, ",".join("1" * 65)),
        "--stop": ANY, "--ignore-end": SWITCH, "--json": SWITCH,
        "--logprobs": (*NUMBER, "65")},
    "fabric-engine serve": {**ENGINE, **FRONT},
    "fabric-engine worker": {**ENGINE, "--role": ("", "both,prefill", "Decode"), "--listen": ADDRESS},
    "fabric-engine router": {
        **FRONT, "--model": ANY, "--worker": ADDRESS, "--pool-socket": ANY,
        "--bypass-tokens": (*NUMBER, "2147483648"), "--bypass-ratio": (*FRACTION, "-0.1", "1.1"),
        "--help": SWITCH, "--version": SWITCH},
    "fabric-engine bench": {
        **ENGINE, "--prompt": (*IDS, "1048577"), "--generate": (*IDS, "1048577"),
        "--depth": (*IDS, "1048577"), "--batch": (*IDS, "99999"), "--repeats": (*NUMBER, "0"),
        "--json": SWITCH},
    "fabric-engine inspect": {"--json": SWITCH, "--tensors": SWITCH, "--help": SWITCH,
                              "--version": SWITCH},
    "fabricmgrd": {
        "--socket": ("", "x" * 108), "--socket-mode": ("", "8", "abc", "0", "01000", "-1"),
        "--size": SIZE, "--memory": ("", "foo", "Best"), "--keeper": ("", "me"), "--entries": (*NUMBER, "0", "4294967296"),
        "--policy": ("", "fifo", "LRU"), "--ready-fd": (*NUMBER, "999"), "--config": ("",),
        "--nvme": ("",), "--nvme-size": SCAN, "--nvme-durable": ("", "maybe", "1"),
        "--allow-uid": USERS, "--allow-gid": USERS, "--client-staging": SCAN, "--redis-tenant": ("",),
        "--adopted": SCAN, "--check": SWITCH, "--forget": SWITCH, "--redis": ("",), "--redis-password-file": ("",), "--redis-names": SCAN,
        "--redis-behind-proxy": SWITCH, "--metrics": LISTEN[:-3],
        "--metrics-behind-proxy": SWITCH, "--metrics-users": USERS, "--log-level": ("", "loud", "INFO"),
        "--log-target": ("", "syslog"), "--help": SWITCH,
        "--version": SWITCH},
    "fabric-sim replay": {
        "--trace": ("",), "--blocks": (*IDS, "268435457"), "--policy": ("", "fifo", "lru,", "LRU"),
        "--block-bytes": (*NUMBER, "0", "1X", "1MB"), "--json": SWITCH, "--help": SWITCH,
        "--version": SWITCH},
    "fabricctl": {"--socket": ("",), "--json": SWITCH, "--interval": (*NUMBER, "0", "3601"),
                  "--once": SWITCH, "--guaranteed": SCAN, "--max": SCAN, "--staging": SCAN,
                  "--requests": (*NUMBER, "1048577"), "--nvme": SCAN, "--help": SWITCH, "--version": SWITCH},
}
# With these, a command line is complete but for what is tried.
COMPLETE = {"fabric-engine run": ("-m", "/none.gguf", "-p", "x"),
            "fabric-engine serve": ("-m", "/none.gguf"),
            "fabric-engine bench": ("-m", "/none.gguf"),
            "fabric-engine worker": ("-m", "/none.gguf", "--listen", "unix:/none/w"),
            "fabric-engine router": ("-m", "/none.gguf", "--worker", "unix:/none/w"),
            "fabric-engine inspect": ("/none.gguf",),
            "fabric-sim replay": ("--trace", "/none.jsonl"), "fabricmgrd": (), "fabricctl": ("info",)}
# Without the prompt, the flag that gives one says what is wrong with it.
PROMPTLESS = ("-m", "/none.gguf")


def run(command, *arguments, **more):
    program, *sub = command.split()
    more = {"capture_output": True, **more}
    return subprocess.run([f"{BIN}/{program}", *sub, *arguments], text=True, timeout=20, check=False,
                          **more)


def is_one_line(text):
    return text.endswith("\n") and text.count("\n") == 1


VALUES = [(command, flag, value) for command, flags in COMMANDS.items()
          for flag, values in flags.items() for value in values or ()]


@pytest.mark.parametrize("command, flag, value", VALUES)
def test_a_bad_value_is_named_with_what_is_allowed(command, flag, value):
    rest = PROMPTLESS if flag == "--tokens" else COMPLETE[command]
    out = run(command, *rest, flag, value)
    assert out.returncode == 2 and out.stdout == "", out
    assert is_one_line(out.stderr), out.stderr
    assert out.stderr.startswith(f"{command}: {flag}"), out.stderr
    assert value[:100] in out.stderr, out.stderr
    assert re.search(r"give|must|may|only|not", out.stderr), out.stderr
    assert out.stderr.endswith(f"; see: {command} --help\n"), out.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_and_version_go_to_standard_output(command):
    for flag in ("--help", "-h"):
        out = run(command, flag)
        assert out.returncode == 0 and out.stderr == "" and out.stdout.startswith("usage: "), out
        assert command in out.stdout.splitlines()[0]
    out = run(command, "--version")
    assert out.returncode == 0 and out.stderr == "", out
    assert re.fullmatch(rf"{command} \d+\.\d+\.\d+\n", out.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_in_the_help_the_manual_and_here(command):
    shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", run(command, "--help").stdout))
    assert shown == set(COMMANDS[command])
    program = command.split()[0]
    section = {"fabricmgrd": 8}.get(program, 1)
    with open(f"{TOP}/Documentation/man/{program}.{section}", encoding="utf-8") as page:
        manual = page.read().replace("\\-", "-")
    missing = {flag for flag in shown if not re.search(rf"{flag}(?![\w-])", manual)}
    assert not missing


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_flags_give_one_line(command):
    for arguments, words in ((("--no-such-flag-at-all",), ("--no-such-flag-at-all",)),
                             (("--no-such-flag-at-all=5",), ("--no-such-flag-at-all",)),
                             (("-Q",), ("-Q",)), (("-QZ",), ("-Q",)),
                             (("--hlep",), ("--hlep", "did you mean --help?")),
                             (("--help=5",), ("--help", "takes no value"))):
        out = run(command, *COMPLETE[command], *arguments)
        assert out.returncode == 2 and out.stdout == "" and is_one_line(out.stderr), out
        assert all(word in out.stderr for word in words), out.stderr
        assert out.stderr.endswith(f"; see: {command} --help\n"), out.stderr
    for flag, values in COMMANDS[command].items():
        if values is not SWITCH:
            out = run(command, *COMPLETE[command], flag)
            assert out.returncode == 2 and is_one_line(out.stderr), out
            assert f"{command}: {flag}: give its value" in out.stderr, out.stderr


@pytest.mark.parametrize("arguments, words", [
    (("run", "-m", "x"), ("-p TEXT",)), (("run", "-p", "x"), ("-m FILE",)),
    (("run", "-m", "x", "-p", "x", "--tokens", "1"), ("-p TEXT or --tokens",)),
    (("run", "-m", "x", "--tokens", "1", "--chat"), ("--chat", "-p TEXT")),
    (("run", "-m", "x", "-p", "x", "extra"), ('"extra"',)), (("serve",), ("-m FILE",)),
    (("serve", "-m", "x", "extra"), ('"extra"',)), (("worker", "-m", "x"), ("--listen",)),
    (("worker", "--listen", "unix:x"), ("-m FILE",)), (("router", "-m", "x"), ("--worker",)),
    (("router", "--worker", "unix:x"), ("-m FILE",)),
    (("router", "-m", "x", "--worker", "unix:x", "extra"), ('"extra"',)),
    (("inspect",), ("model file",)), (("inspect", "a", "b"), ("2 model files",)),
    (("run", "-m", "x", "-p", "x", "-p", "y"), ("-p is given twice",)),
    (("run", "-m", "x", "-p", "x", "--logprobs", "1"), ("--logprobs", "add --json")),
    (("run", "-m", "x", "-p", "x", "--teacher", "1"), ("--teacher", "add --json")),
    (("serve", "-m", "x", "--pool-socket", "x", "--pool-size", "16M"), ("--pool-size with --pool-socket",)),
    (("router", "-m", "x", "--worker", "nonsense"), ("nonsense", "127.0.0.1:port (loopback only)")),
    (("rum",), ('"rum"', "did you mean run?")), (("frobnicate",), ('"frobnicate"',)),
    (("--json",), ("--json", "command"))])
def test_what_is_missing_or_too_much_is_named(arguments, words):
    out = run("fabric-engine", *arguments)
    assert out.returncode == 2 and out.stdout == "" and is_one_line(out.stderr), out
    assert all(word in out.stderr for word in words), out.stderr
    assert "; see: fabric-engine" in out.stderr


def test_the_other_programs_name_what_is_missing_or_too_much():
    for command, arguments, words in (
            ("fabricctl", (), ("one command", "status")),
            ("fabricctl", ("info", "ls"), ("one command",)),
            ("fabricctl", ("lss",), ('"lss"', "did you mean ls?")),
            ("fabric-sim", (), ("command", "replay")),
            ("fabric-sim", ("reply",), ('"reply"', "replay")),
            ("fabric-sim", ("replay",), ("--trace FILE",)),
            ("fabric-sim", ("replay", "--trace", "/x", "y"), ('"y"',)),
            ("fabricmgrd", ("start",), ('"start"',))):
        out = run(command, *arguments)
        assert out.returncode == 2 and is_one_line(out.stderr), out
        assert all(word in out.stderr for word in words), out.stderr


def test_what_a_daemon_cannot_use_is_named_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    for arguments, words in (
            (("--size", "100T"), ("the largest has 16 TiB", "choose a smaller size")),
            (("--size", "64M", "--entries", "15"), ("16 chunks", "give 16 or more")),
            (("--socket", f"{tmp_path}/file/pool.sock"), ("choose a socket in a folder",)),
            (("--redis", "0.0.0.0:0"), ("--redis-password-file: missing", "--redis-behind-proxy: missing"))):
        out = run("fabricmgrd", "--size", "16M", "--socket", f"{tmp_path}/pool.sock", *arguments)
        assert out.returncode == 1 and all(word in out.stderr for word in words), out


def test_a_trace_that_is_none_is_named_with_a_remedy(tmp_path):
    (tmp_path / "page").write_text("# A page\n")
    for name, words in (("none", ("No such file", "tests/data/traces")), ("page", ("line 1", "give a trace"))):
        out = run("fabric-sim replay", "--trace", f"{tmp_path}/{name}")
        assert out.returncode == 1 and all(word in out.stderr for word in words), out


def test_make_names_what_it_was_given_and_what_there_is():
    for arguments, words in (
            (("bench-nope",), ("bench-nope", "choose one of:", "put_get")),
            (("model", "MODEL=README.md"), ("README.md is not a GGUF file",)),
            (("model", "CACHE=/proc/none"), ("CACHE=/proc/none cannot be written",))):
        out = subprocess.run(["make", "--no-print-directory", "-s", *arguments], cwd=TOP, text=True,
                             capture_output=True, check=False,
                             env={key: value for key, value in os.environ.items() if key != "MODEL"})
        assert out.returncode and all(word in out.stderr for word in words), out


def test_no_command_shows_what_there_is():
    out = run("fabric-engine")
    assert out.returncode == 2 and out.stderr.startswith("usage: fabric-engine")
    assert run("fabric-engine", "--help").stdout == out.stderr
    assert re.fullmatch(r"fabric-engine \d+\.\d+\.\d+\n", run("fabric-engine", "--version").stdout)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("fabric-engine")])
@pytest.mark.parametrize("name, words", [
    ("absent.gguf", ("No such file", "give the path")), ("folder", ("is not a file", "give the path")),
    ("text.gguf", ("GGUF",)), ("empty.gguf", ("is empty",)), ("secret.gguf", ("ermission", "chmod"))])
def test_a_model_that_cannot_be_used(tmp_path, command, name, words):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.gguf").write_text("Hello, I am a text. " * 100)
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "secret.gguf").write_bytes(b"GGUF" * 100)
    (tmp_path / "secret.gguf").chmod(0)
    more = {}
    if name == "secret.gguf" and os.geteuid() == 0:
        os.chmod(tmp_path, 0o755)
        for folder in (tmp_path.parent, tmp_path.parent.parent):
            os.chmod(folder, 0o755)
        more = {"user": 65534, "group": 65534, "extra_groups": []}
    rest = [str(tmp_path / name) if x == "/none.gguf" else x for x in COMPLETE[command]]
    out = run(command, *rest, **more)
    assert out.returncode == 1 and out.stdout == "", out
    assert is_one_line(out.stderr), out.stderr
    assert name in out.stderr and all(word in out.stderr for word in words), out.stderr


@pytest.mark.parametrize("arguments", [
    ("fabric-engine", "--help"), ("fabric-engine", "--version"),
    *[(command, flag) for command in COMMANDS for flag in ("--help", "--version")],
    ("fabric-engine run", "-n", "3", "-p", "a", "-m"), ("fabric-engine inspect",),
    ("fabric-engine run", "-n", "3", "-p", "a", "--json", "-m"), ("fabric-engine inspect", "--json"),
    ("fabric-engine inspect", "--json", "--tensors")])
def test_output_that_cannot_be_written_is_a_failure(tiny_model, arguments):
    if not arguments[-1] in ("--help", "--version"):
        arguments = (*arguments, tiny_model)
    with open("/dev/full", "w", encoding="utf-8") as full:
        out = run(*arguments, stdout=full, stderr=subprocess.PIPE, capture_output=False)
    assert out.returncode == 1, out
    assert is_one_line(out.stderr) and "standard output" in out.stderr, out.stderr
    assert "No space left" in out.stderr


def test_what_a_daemon_answers_is_written_or_a_failure(system):
    system.daemon("16M")
    for command in ("info", "status", "ls", "verify", "snapshot", "evict", "drain", "undrain"):
        for more in ((), ("--json",)):
            with open("/dev/full", "w", encoding="utf-8") as full:
                out = run("fabricctl", "--socket", system.socket, *more, command, stdout=full,
                          stderr=subprocess.PIPE, capture_output=False)
            assert out.returncode == 1 and "could not be written" in out.stderr, (command, out)


def test_the_daemon_says_the_size_that_it_holds(system):
    daemon = system.daemon("10M")
    assert daemon.wait_for(r"size: (\d+) MiB")[1] == "8"
    assert system.control("info")["total_bytes"] == 8 << 20


def test_progress_is_for_a_person_at_a_terminal(tiny_model):
    arguments = ("-m", tiny_model, "-n", "3", "-p", "word " * 40, "--chunk", "16", "--pool-size", "16M")
    silent = run("fabric-engine run", *arguments)
    assert silent.returncode == 0 and silent.stderr == ""
    ours, theirs = os.openpty()
    shown = run("fabric-engine run", *arguments, stdout=subprocess.PIPE, stderr=theirs,
                capture_output=False)
    os.close(theirs)
    text = b""
    try:
        while chunk := os.read(ours, 4096):
            text += chunk
    except OSError:  # the end of a terminal without its other side
        pass
    os.close(ours)
    assert shown.stdout == silent.stdout
    assert text.startswith(b"\r\x1b[Kloading ") and text.endswith(b"\r\x1b[K")
    counts = [int(n) for n in re.findall(rb"prompt: (\d+) of \d+ tokens", text)]
    assert len(counts) > 3 and counts == sorted(counts)
