# SPDX-License-Identifier: Apache-2.0
"""What `make install` puts down: it builds and runs programs, its pages render, its words agree.

Everything goes into a folder of the test. Flags and commands are read from --help, man page and bash
completion, and have to be the same three times.
"""
import os
import re
import subprocess

import pytest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("FABRICMGR_BIN", f"{TOP}/build/release/bin")
PROGRAMS = ["fabric-engine", "fabricctl", "fabricmgrd", "fabricmgr-holder"]
PAGES = ["fabric-engine.1", "fabricctl.1", "fabricmgrd.8", "fabricmgr-holder.8", "fabricmgr.3"]
PREFIX = "/opt/fabricmgr"


def run(*command, **options):
    done = subprocess.run(command, text=True, capture_output=True, timeout=300, check=False, **options)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def make(target, folder):
    # Not a job of the make that may have started the tests.
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "VARIANT")}
    run("make", "-s", target, f"DESTDIR={folder}", f"PREFIX={PREFIX}", cwd=TOP, env=environment)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    make("install", folder)
    return f"{folder}{PREFIX}"


def exported(library):
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    return {line.split()[-1] for line in lines if line.split()[1] in "TWDBRVi"}


def header_functions():
    with open(f"{TOP}/libfabricmgr/include/fabricmgr.h", encoding="utf-8") as file:
        return set(re.findall(r"^FM_API [^;]*?\b(fm_\w+)\(", file.read(), re.M))


# ---- the library ----

def test_the_library_exports_what_the_header_promises(root):
    with open(f"{TOP}/libfabricmgr/fabricmgr.map", encoding="utf-8") as file:
        text = file.read()
    listed = set(re.findall(r"\bfm_\w+(?=;)", text))
    assert len(listed) > 30
    assert listed == header_functions()
    assert exported(f"{root}/lib/libfabricmgr.so") == {f"{name}@@FABRICMGR_0" for name in listed}
    assert "SONAME" in run("readelf", "-d", f"{root}/lib/libfabricmgr.so")
    assert "[libfabricmgr.so.0]" in run("readelf", "-d", f"{root}/lib/libfabricmgr.so")
    assert os.readlink(f"{root}/lib/libfabricmgr.so") == "libfabricmgr.so.0"
    assert os.path.isfile(f"{root}/lib/libfabricmgr.so.0")


# What each program of Documentation/examples prints, every time that it runs.
EXAMPLES = {
    "adopt": "one: 65536 bytes, first '1'\none: not there\ntwo: 65536 bytes, first '2'\n",
    "layers": "layer 0: 'a'\nlayer 1: 'b'\nlayer 2: 'c'\nlayer 3: 'd'\n",
    "put_get": "65536 bytes, first 'x'\n",
    "queue": "200000 bytes, last 'a'\n200000 bytes, last 'b'\n",
}


@pytest.mark.parametrize("compiler", [
    ["gcc", "-std=c99"], ["g++", "-x", "c++", "-std=c++11"],
], ids=["c99", "c++11"])
def test_programs_build_and_run_against_it(root, tmp_path, compiler):
    flags = run("pkg-config", "--define-prefix", "--cflags", "--libs", "fabricmgr",
                env={**os.environ, "PKG_CONFIG_PATH": f"{root}/lib/pkgconfig"}).split()
    assert f"-I{root}/include" in flags and "-lfabricmgr" in flags
    sources = os.listdir(f"{TOP}/Documentation/examples")
    assert sorted(sources) == sorted(f"{name}.c" for name in EXAMPLES)
    reader, writer = os.pipe()
    socket = f"{tmp_path}/pool.sock"
    daemon = subprocess.Popen([f"{root}/bin/fabricmgrd", "--socket", socket, "--size", "8M",
                               "--memory", "memfd", "--adopted", "8M", "--ready-fd", str(writer)],
                              pass_fds=[writer], stderr=subprocess.DEVNULL)
    try:
        os.close(writer)
        assert os.read(reader, 1), "the installed daemon did not start"
        environment = {**os.environ, "FABRICMGR_SOCKET": socket, "LD_LIBRARY_PATH": f"{root}/lib"}
        for name, says in EXAMPLES.items():
            run(*compiler, "-Wall", "-Wextra", "-Werror", "-pedantic-errors",
                f"{TOP}/Documentation/examples/{name}.c", "-x", "none", "-o", f"{tmp_path}/{name}", *flags,
                "-pthread")
            for _ in range(2):  # the second time it is there already
                assert run(f"{tmp_path}/{name}", env=environment) == says
        assert "3 sealed" in run(f"{root}/bin/fabricctl", "--socket", socket, "status")
    finally:
        os.close(reader)
        daemon.terminate()
        assert daemon.wait(30) == 0


def test_a_version_everywhere(root):
    version = run("pkg-config", "--modversion", "fabricmgr",
                  env={**os.environ, "PKG_CONFIG_PATH": f"{root}/lib/pkgconfig"}).strip()
    assert os.path.isfile(f"{root}/lib/libfabricmgr.so.{version}")
    for program in PROGRAMS:
        assert version in run(f"{root}/bin/{program}", "--version")


def test_uninstall_takes_away_what_install_put(tmp_path):
    make("install", tmp_path)
    own = tmp_path / PREFIX[1:] / "lib" / "someone-elses"
    own.write_text("stays")
    make("uninstall", tmp_path)
    left = [os.path.join(folder, name) for folder, _, names in os.walk(tmp_path) for name in names]
    assert left == [str(own)]


# ---- the pages ----

@pytest.mark.parametrize("page", PAGES)
def test_a_page_renders_without_warnings(root, page):
    path = f"{root}/share/man/man{page[-1]}/{page}"
    done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", path], text=True,
                          capture_output=True, check=False, env={**os.environ, "MANWIDTH": "80"})
    assert done.returncode == 0 and done.stderr == ""
    assert len(done.stdout.splitlines()) > 20


def test_the_library_page_names_every_function(root):
    with open(f"{root}/share/man/man3/fabricmgr.3", encoding="utf-8") as file:
        assert set(re.findall(r"\bfm_\w+", file.read())) - {"fm_err"} == header_functions()
    for name in header_functions():
        shown = run("man", "-M", f"{root}/share/man", "-E", "UTF-8", "3", name,
                    env={**os.environ, "MANWIDTH": "80"})
        assert f"{name}()" in shown


# ---- flags: --help, man page, completion ----

FLAG = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")


def commands(program):
    """Names of the subcommands that --help lists."""
    if program == "fabricmgrd":
        return []
    return re.findall(r"^  ([a-z]\w*)  +\S", run(f"{BIN}/{program}", "--help"), re.M)


def cases():
    for program in PROGRAMS:
        if program == "fabric-engine":
            yield from ((program, command) for command in commands(program))
        else:
            yield program, ""


def help_flags(program, command):
    return set(FLAG.findall(run(f"{BIN}/{program}", *([command] if command else []), "--help")))


def man_sections(program):
    """Title to text without roff's marks, one paragraph tag a line."""
    page = next(page for page in PAGES if page.startswith(program + "."))
    with open(f"{TOP}/Documentation/man/{page}", encoding="utf-8") as file:
        parts = re.split(r"^\.SH (.*)$", file.read(), flags=re.M)
    return {title.strip('"'): re.sub(r"\\f.|\\&", "", text).replace("\\-", "-")
            for title, text in zip(parts[1::2], parts[2::2])}


def man_flags(program, command):
    """The flags of the paragraph tags in the sections of options that concern @command."""
    flags = set()
    for title, text in man_sections(program).items():
        words = re.findall(r"[A-Z]+", title)
        if words[0] == "OPTIONS" and (not command or command.upper() in words or "EVERY" in words):
            for tag in re.findall(r"^\.TP\n(\..*)$", text, re.M):
                flags |= set(FLAG.findall(tag.replace('"', "")))
    return flags


def complete(program, *words):
    script = (f"source {TOP}/packaging/completion/{program}; COMP_WORDS=({program} "
              f"{' '.join(repr(word) for word in words)}); COMP_CWORD={len(words)}; "
              f"_{program.replace('-', '_')}; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
    return set(run("bash", "-c", script).split())


@pytest.mark.parametrize("program, command", list(cases()))
def test_flags_are_the_same_in_help_man_page_and_completion(program, command):
    flags = help_flags(program, command)
    assert {"--help", "--version"} < flags
    assert man_flags(program, command) == flags
    assert complete(program, *([command] if command else []), "-") == flags


@pytest.mark.parametrize("program", ["fabric-engine", "fabricctl"])
def test_commands_are_the_same_in_help_man_page_and_completion(program):
    names = commands(program)
    sections = man_sections(program)
    described = re.findall(r"^\.TP\n\.B (\w+)$", sections.get("COMMANDS") or sections["DESCRIPTION"], re.M)
    assert len(names) >= 4
    assert set(described) == set(names)
    assert {word for word in complete(program, "") if not word.startswith("-")} == set(names)


@pytest.mark.parametrize("program, words", [
    ("fabricmgrd", ["--memory"]), ("fabricmgrd", ["--policy"]),
    *[("fabric-engine", ["run", flag]) for flag in ("--precision", "--kv", "--isa")],
    ("fabric-engine", ["worker", "--role"]), ("fabric-engine", ["serve", "--tls"]),
])
def test_choices_that_completion_offers_are_those_of_help(program, words):
    text = run(f"{BIN}/{program}", *words[:-1], "--help")
    lines = "\n".join(re.findall(rf"^ .*{words[-1]} .*$", text, re.M))
    offered = complete(program, *words, "")
    assert offered and all(re.search(rf"(?<!\w){choice}\b", lines) for choice in offered)
