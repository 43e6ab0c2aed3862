# SPDX-License-Identifier: Apache-2.0
"""The tree keeps its own rules, and the checks find each kind of breach when one is planted."""
import os
import subprocess

import pytest

import layers
import style

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = "build/release"
OPENING = "/* SPDX-License-Identifier: Apache-2.0 */\n/*\n * What lives here. Who calls it.\n */\n"


def tracked(*suffixes):
    """Files that git knows or would take, or without git those under the known folders."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=TOP, text=True,
                            capture_output=True, check=False)
    if listed.returncode == 0:
        paths = listed.stdout.splitlines()
    else:
        paths = [os.path.relpath(os.path.join(folder, name), TOP)
                 for folder, _, names in os.walk(TOP) for name in names
                 if not os.path.relpath(folder, TOP).startswith(("build", ".git"))]
    return sorted(p for p in paths if p.endswith(suffixes) and os.path.isfile(os.path.join(TOP, p)))


def tell(faults):
    assert not faults, "\n" + "\n".join(faults)


def test_includes_follow_the_arrows():
    assert len(list(layers.sources(TOP))) > 80
    tell(layers.check(TOP))


def test_cores_call_nothing_of_the_system():
    tell(layers.check_symbols(TOP, BUILD))


def test_every_file_keeps_the_style():
    paths = tracked(".c", ".h")
    assert len(paths) > 100
    tell(style.check(TOP, paths))


def test_no_word_of_unfinished_work():
    tell(style.check_words(TOP, tracked(".c", ".h", ".py", ".sh", ".md", ".pml", ".map", ".1", ".3",
                                        ".8", "Makefile", "run")))


def test_documents_name_what_is_there():
    pages = tracked(".md")
    assert "Documentation/contributing.md" in pages
    tell(style.check_documents(TOP, pages, tracked(".c", ".h", ".py", ".sh", ".md", "Makefile")))


# ---- the checks themselves ----

def plant(top, files):
    for path, text in files.items():
        os.makedirs(os.path.join(top, os.path.dirname(path)), exist_ok=True)
        with open(os.path.join(top, path), "w", encoding="utf-8") as file:
            file.write(text)


HEADERS = {
    "libfabricmgr/include/fabricmgr.h": "", "kmod/uapi/fabricmgr.h": "",
    "libfabricmgr/base/clock.h": "", "libfabricmgr/core/index.h": "", "libfabricmgr/mem/region.h": "",
    "libfabricmgr/pool/client.h": "", "kernels/kernels.h": "", "engine/core/scheduler.h": "",
    "engine/model/model.h": "", "engine/model/gguf.h": "", "engine/text/tokenizer.h": "",
    "engine/worker/engine.h": "", "engine/worker/protocol.h": "", "engine/http/server.h": "",
    "engine/options.h": "", "tools/command_line.h": "",
}


@pytest.mark.parametrize("path, line", [
    ("libfabricmgr/core/x.c", '#include "base/clock.h"\n#include <fabricmgr.h>'),
    ("libfabricmgr/core/x.c", '#include "../../kmod/uapi/fabricmgr.h"'),
    ("libfabricmgr/pool/x.c", '#include "core/index.h"\n#include "mem/region.h"\n#include <unistd.h>'),
    ("engine/text/x.c", '#include "model/gguf.h"'),
    ("engine/http/x.c", '#include "worker/protocol.h"\n#include <microhttpd.h>'),
    ("engine/x.c", '#include "options.h"\n#include "http/server.h"\n#include <kernels.h>'),
    ("tools/fabricctl/x.c", '#include "command_line.h"'),
])
def test_an_allowed_include_passes(tmp_path, path, line):
    plant(tmp_path, {**HEADERS, path: line + "\n"})
    assert layers.check(tmp_path) == []


@pytest.mark.parametrize("path, line", [
    ("libfabricmgr/base/x.c", '#include "core/index.h"'),
    ("libfabricmgr/mem/x.c", '#include "core/index.h"'),
    ("libfabricmgr/core/x.c", '#include "pool/client.h"'),
    ("libfabricmgr/core/x.c", '# include <time.h>'),
    ("libfabricmgr/core/x.c", '#include <unistd.h>'),
    ("engine/core/x.c", '#include <pthread.h>'),
    ("engine/core/x.c", '#include "model/model.h"'),
    ("engine/model/x.c", '#include "text/tokenizer.h"'),
    ("engine/text/x.c", '#include "model/model.h"'),
    ("engine/worker/x.c", '#include "options.h"'),
    ("engine/worker/x.c", '#include "http/server.h"'),
    ("engine/http/x.c", '#include "worker/engine.h"'),
    ("engine/x.c", '#include "../libfabricmgr/base/clock.h"'),
    ("engine/x.c", '#include "../kmod/uapi/fabricmgr.h"'),
    ("engine/x.c", '#include <liburing.h>'),
    ("tools/fabricctl/x.c", '#include "../../libfabricmgr/core/index.h"'),
    ("kernels/cpu/x.c", '#include <model/model.h>'),
    ("kernels/cpu/x.c", '#include "not_there.h"'),
    ("engine/attic/x.c", '#include <stdio.h>'),
])
def test_a_wrong_include_is_found(tmp_path, path, line):
    plant(tmp_path, {**HEADERS, path: line + "\n"})
    faults = layers.check(tmp_path)
    assert len(faults) == 1 and faults[0].startswith(path + ":1: ")


@pytest.mark.parametrize("call", ["time(0)", "rand()", "getpid()", "fm_clock_ns()"])
def test_a_call_out_of_a_core_is_found(tmp_path, call):
    name = call.split("(")[0]
    plant(tmp_path, {"libfabricmgr/core/x.c": f"long {name}(); long y(void) {{ return {call}; }}\n",
                     "engine/core/z.c": "void *malloc(unsigned long); int y(void); void *z(void);\n"
                                        "void *z(void) { return malloc(1); }\n"})
    for core in layers.CORES:
        (tmp_path / "build" / core).mkdir(parents=True)
    for source in ("libfabricmgr/core/x", "engine/core/z"):
        subprocess.run(["gcc", "-w", "-fno-builtin", "-c", f"{source}.c", "-o", f"build/{source}.o"],
                       cwd=tmp_path, check=True)
    assert layers.check_symbols(tmp_path, "build") == [f"libfabricmgr/core/x.c: a core calls {name}()"]


FUNCTION = "int f(void);\n\nint f(void)\n{\n%s}\n"
ATOMIC_FUNCTION = "static void f(void)\n{\n%s\tfm_store_release(&x, 1);\n}\n"


@pytest.mark.parametrize("text", [
    OPENING + FUNCTION % ("\t;\n" * 78),
    OPENING + "\t" * 11 + "x" * 12 + "\n",
    OPENING + ATOMIC_FUNCTION % "\t/* Release: pairs with the acquire in g(). */\n",
    OPENING + "/* Release: pairs with g(). */\n" + ATOMIC_FUNCTION % "",
    OPENING + "\n" * (style.LINES_MAX - OPENING.count("\n") - 1),
])
def test_good_style_passes(tmp_path, text):
    plant(tmp_path, {"libfabricmgr/core/x.c": text})
    assert style.check(tmp_path, ["libfabricmgr/core/x.c"]) == []


@pytest.mark.parametrize("text, what", [
    ("/*\n" + OPENING.split("\n", 1)[1], "does not name the licence"),
    (OPENING.replace(" Who calls it.", ""), "opens without two sentences"),
    ("// SPDX-License-Identifier: Apache-2.0\n#include <stdio.h>\n/* One. Two. */\n",
     "opens without two sentences"),
    (OPENING + FUNCTION % ("\t;\n" * 79), "a function of 81 lines"),
    (OPENING + "\t" * 11 + "x" * 13 + "\n", "101 columns"),
    (OPENING + "int x; \n", "blanks at the end"),
    (OPENING + "        int x;\n", "indented by blanks"),
    (OPENING + "\n" * style.LINES_MAX, "lines, at most"),
    (OPENING + ATOMIC_FUNCTION % "", "fm_store_release without a comment"),
    (OPENING + ATOMIC_FUNCTION % "\t/* Tells the other side. */\n", "fm_store_release without a comment"),
])
def test_bad_style_is_found(tmp_path, text, what):
    plant(tmp_path, {"libfabricmgr/core/x.c": text})
    faults = style.check(tmp_path, ["libfabricmgr/core/x.c"])
    assert len(faults) == 1 and what in faults[0]


@pytest.mark.parametrize("line, is_found", [
    ("/* TO" + "DO: later */", True), ("a stu" + "b", True), ("see /ho" + "me/me/x", True),
    ("HOME=~/home/x", False), ("mktemp /tmp/x.XX" + "XXXX", False), ("a stubborn client", False),
])
def test_words_are_found(tmp_path, line, is_found):
    plant(tmp_path, {"x.md": "first\n" + line + "\n"})
    assert [fault.split(" ")[0] for fault in style.check_words(tmp_path, ["x.md"])] == \
        (["x.md:2:"] if is_found else [])


def test_documents_that_name_what_is_gone_are_found(tmp_path):
    plant(tmp_path, {"lib/x.c": "int fm_here(void);\n",
                     "page.md": "`fm_here()` in `lib/x.c`\n`fm_gone()`\n`lib/y.c`\n"})
    assert style.check_documents(tmp_path, ["page.md"], ["lib/x.c"]) == [
        "page.md:2: fm_gone() is nowhere in the code", "page.md:3: lib/y.c is not there"]


def test_sources_that_name_a_page_that_is_gone_are_found(tmp_path):
    plant(tmp_path, {"lib/x.c": "/* See pages/here.md. */\n/* See gone.md, \"Trust\". */\n", "pages/here.md": "\n"})
    assert style.check_documents(tmp_path, ["pages/here.md"], ["lib/x.c", "pages/here.md"]) == [
        "lib/x.c:2: there is no page gone.md"]
