# SPDX-License-Identifier: Apache-2.0
"""The kernel module's source under sparse and checkpatch, run by tests/vm/check.py before the machines.

sparse and W=1 are part of every build of it (the Makefile's kmod-%: a warning ends it); here is shown that
they find a planted fault. checkpatch --strict is that of Debian's kernel source; what may stay has its
reason in STAYS. The module is as small as the design promises: LINES_MAX.
"""
import os
import re
import subprocess
import tempfile

from suites.common import TOP, report, run

LINES_MAX = 4000
# Types of checkpatch's remarks that stay.
STAYS = {
    "OPEN_ENDED_LINE": "clang-format breaks so where a name is too long for its line",
    "PARENTHESIS_ALIGNMENT": "the macros of tracepoints are indented as everywhere in the kernel",
    "UNCOMMENTED_DEFINITION": "internal.h says at each field which lock it needs, and the order of locks once",
    "MACRO_ARG_REUSE": "loop macros, which are given plain variables alone",
    "BLOCK_COMMENT_STYLE": "the header's short comments beside members",
    "BIT_MACRO": "BIT() is not for headers that programs include",
    "CAMELCASE": "_Static_assert is the language's own name",
}
PLANTED_SPARSE = "static int f(int __attribute__((noderef, address_space(1))) *p)\n{\n\treturn *p;\n}\n"
PLANTED_STYLE = "// SPDX-License-Identifier: GPL-2.0\nint f(void)\n{\n    return 1 ;\n}\n"


def sources():
    return sorted(os.path.relpath(os.path.join(folder, name), TOP)
                  for folder, _, names in os.walk(f"{TOP}/kmod") for name in names
                  if name.endswith((".c", ".h")))


def remarks(script, path):
    # It leaves a list of names where it is started: that is a folder of the cache.
    done = subprocess.run(["perl", script, "--no-tree", "--strict", "--terse", "--show-types", "--max-line-length=100",
                           "-f", os.path.join(TOP, path)], cwd=os.path.dirname(script), capture_output=True, text=True, check=False)
    return re.findall(r"^.*: (?:ERROR|WARNING|CHECK):(\w+): .*$", done.stdout, re.M), done.stdout


def sparse_finds_its_fault():
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/planted.c"
        with open(path, "w", encoding="utf-8") as file:
            file.write(PLANTED_SPARSE)
        status, text, took = run(["sparse", "-Wsparse-error", path], 60)
    is_found = status != 0 and "noderef" in text
    report("kmod/sparse finds a planted fault", int(is_found), int(not is_found), 0, took, text)


def checkpatch(script):
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/planted.c"
        with open(path, "w", encoding="utf-8") as file:
            file.write(PLANTED_STYLE)
        types, text = remarks(script, path)
    is_found = not {"SPACING", "CODE_INDENT"}.isdisjoint(types)
    report("kmod/checkpatch finds a planted fault", int(is_found), int(not is_found), 0, 0.0, text)
    bad, stayed = [], 0
    for path in sources():
        types, text = remarks(script, path)
        stayed += len(types)
        if set(types) - set(STAYS):
            bad.append(text)
    report(f"kmod/checkpatch --strict ({len(sources())} files)", int(not bad), int(bool(bad)), 0, 0.0,
           "\n".join([*bad, f"NOTE: {stayed} remarks stay, of {len(STAYS)} types with reasons (tests/suites/kmod.py)"]))


def size():
    """What a person has to read to audit it; the header for programs is a document of its own."""
    lines = 0
    for path in sources():
        if not path.startswith("kmod/uapi/"):
            with open(f"{TOP}/{path}", encoding="utf-8") as file:
                lines += sum(bool(line.strip()) for line in file)
    is_small = 0 < lines < LINES_MAX
    report("kmod/size", int(is_small), int(not is_small), 0, 0.0, f"NOTE: {lines} lines that are not blank, fewer than {LINES_MAX} allowed")


def kmod(script):
    """@script: checkpatch.pl."""
    sparse_finds_its_fault()
    checkpatch(script)
    size()
