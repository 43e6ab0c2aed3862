# SPDX-License-Identifier: Apache-2.0
"""Who may include whom, and what the cores may call: the arrows of Documentation/contributing.md.

check(top) reads every .c and .h of the folders below and returns a list of "path:line: what is
wrong"; check_symbols(top, build) reads the built objects of the cores. Nothing is compiled here.
"""
import os
import re
import subprocess

API = ["libfabricmgr/include"]
LIBRARY = [*API, "kmod/uapi", "libfabricmgr/base"]

# Folder: the folders and headers that its files may include besides their own folder's. A folder
# that is not here has no place in the house yet.
ARROWS = {
    "kmod": ["kmod/uapi"],
    "kmod/uapi": [],
    "libfabricmgr/include": [],
    "libfabricmgr/base": [*API],
    "libfabricmgr/core": [*LIBRARY],
    "libfabricmgr/mem": [*LIBRARY],
    "libfabricmgr/tier": [*LIBRARY, "libfabricmgr/core"],
    "libfabricmgr/pool": [*LIBRARY, "libfabricmgr/core", "libfabricmgr/mem", "libfabricmgr/tier"],
    "kernels": [],
    "kernels/cpu": [*API, "kernels"],
    "engine/core": [*API],
    "engine/model": [*API, "kernels"],
    "engine/text": [*API, "engine/model/gguf.h"],
    "engine/worker": [*API, "engine/json_memory.h", "engine/core", "engine/model", "engine/text"],
    "engine/http": [*API, "tools/command_line.h", "engine/json_memory.h", "engine/core", "engine/text", "engine/model/gguf.h",
                    "engine/worker/protocol.h", "engine/worker/address.h"],
    "engine": [*API, "tools/command_line.h", "engine/core", "engine/http", "engine/model", "engine/text", "engine/worker",
               "kernels"],
    "tools": [*API],
    "tools/fabricctl": [*API, "tools"],
    "tools/fabricmgrd": [*API, "tools"],
    "tools/fabricmgr-holder": [*API, "tools"],
    "tools/fabric-sim": [*LIBRARY, "tools", "libfabricmgr/core"],
}
# Where the compiler looks, in its order (INC_LIB, INC_ENGINE, INC_TOOLS of the Makefile).
SEARCHED = {
    "libfabricmgr": ["libfabricmgr/include", "kmod/uapi", "libfabricmgr"],
    "kernels": ["libfabricmgr/include", "kmod/uapi", "kernels", "engine"],
    "engine": ["libfabricmgr/include", "kmod/uapi", "kernels", "engine", "tools"],
    "tools": ["libfabricmgr/include", "kmod/uapi", "libfabricmgr", "tools"],
    "kmod": ["kmod/uapi"],
}
# A core takes events and a time and returns decisions: all of the C library that it may see.
CORES = ["libfabricmgr/core", "engine/core"]
CORE_HEADERS = {"stdbool.h", "stddef.h", "stdint.h", "stdlib.h", "string.h", "openssl/sha.h"}
CORE_SYMBOLS = re.compile(r"(calloc|malloc|realloc|free|abort|qsort|bsearch|mem\w+|str(len|n?cmp|n?len)|"
                          r"__stack_chk_fail|_GLOBAL_OFFSET_TABLE_|SHA256_\w+|fm_fail|fm_crc32c)$")
# A dependency has one home; who wants it elsewhere asks that home.
HOMES = {
    "liburing.h": ["libfabricmgr/base", "libfabricmgr/pool", "libfabricmgr/tier"],
    "isa-l/": ["libfabricmgr/base"],
    "numa": ["libfabricmgr/mem"],
    "sys/sdt.h": ["libfabricmgr/include"],
    "ncurses.h": ["tools/fabricctl"],
    "ini.h": ["tools/fabricmgrd"],
    "microhttpd.h": ["engine/http", "tools/fabricmgrd"],
    "pcre2.h": ["engine/text"],
    "utf8proc.h": ["engine/text"],
    "immintrin.h": ["kernels/cpu", "libfabricmgr/base"],
    "cpuid.h": ["kernels/cpu"],
}


def sources(top):
    """Paths of all .c and .h files under the folders that have rules, relative to @top."""
    for root in SEARCHED:
        for folder, _, names in sorted(os.walk(os.path.join(top, root))):
            for name in sorted(names):
                if name.endswith((".c", ".h")):
                    yield os.path.relpath(os.path.join(folder, name), top)


def resolve(top, folder, quote, name):
    """The file of this tree that the compiler would take, or None: a system header."""
    places = SEARCHED[folder.split("/")[0]]
    for place in ([folder] if quote == '"' else []) + places:
        path = os.path.normpath(os.path.join(place, name))
        if os.path.isfile(os.path.join(top, path)):
            return path
    return None


def check_include(top, path, quote, name):
    folder = os.path.dirname(path)
    target = resolve(top, folder, quote, name)
    if target is None:
        if quote == '"':
            return f"includes \"{name}\", which is not there"
        if folder in CORES and name not in CORE_HEADERS:
            return f"a core includes <{name}>: no system calls, clocks, threads or randomness there"
        for header, homes in HOMES.items():
            if name.startswith(header) and folder not in homes:
                return f"includes <{name}>, which only {', '.join(homes)} may"
        return None
    if os.path.dirname(target) == folder or target in ARROWS[folder] or \
            os.path.dirname(target) in ARROWS[folder]:
        return None
    return f"includes {target}: {folder} may see only {', '.join(ARROWS[folder]) or 'itself'}"


def check(top):
    faults = []
    for path in sources(top):
        if os.path.dirname(path) not in ARROWS:
            faults.append(f"{path}:1: its folder has no place in the layers (ARROWS in layers.py)")
            continue
        with open(os.path.join(top, path), encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                match = re.match(r'\s*#\s*include\s*([<"])([^">]+)', line)
                fault = match and check_include(top, path, match[1], match[2])
                if fault:
                    faults.append(f"{path}:{number}: {fault}")
    return faults


def symbols(path, flag):
    lines = subprocess.run(["nm", flag, path], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in lines.splitlines() if line}


def check_symbols(top, build):
    """What the cores' objects call: each other, or CORE_SYMBOLS."""
    faults = []
    for core in CORES:
        folder = os.path.join(top, build, core)
        objects = [os.path.join(folder, name) for name in sorted(os.listdir(folder))
                   if name.endswith(".o") and os.path.exists(os.path.join(top, core, name[:-1] + "c"))]
        if not objects:
            faults.append(f"{folder}: no objects; run make programs")
        own = set().union(*(symbols(path, "--defined-only") for path in objects))
        for path in objects:
            for symbol in sorted(symbols(path, "-u") - own):
                if not CORE_SYMBOLS.match(symbol):
                    faults.append(f"{core}/{os.path.basename(path)[:-1]}c: a core calls {symbol}()")
    return faults
