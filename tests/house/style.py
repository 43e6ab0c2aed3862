# SPDX-License-Identifier: Apache-2.0
"""The house style that a program can see, and the names that the documents use.

check(top, paths) returns "path:line: what is wrong" for C files, check_words() for every text,
check_documents() for what the pages name and the tree does not have. The rules are those of
Documentation/contributing.md.
"""
import os
import re

LINES_MAX, FUNCTION_MAX, COLUMNS_MAX = 1200, 80, 100
# What says that a thing is not finished, and places of one person's machine.
WORDS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK|stu" r"b(bed|s)?|place" r"holders?)\b|"
                   r"(?<![\w.~])/(home|root|wo" r"rk)/\w")
ATOMIC = re.compile(r"\b(fm_(load|store)_(relaxed|acquire|release)|fm_fence|atomic_\w+|__atomic_\w+)\(")
ORDER = re.compile(r"pairs?\b|acquire|release|relaxed|seq_cst|order(s|ed)?\b", re.I)


def opening(text):
    """The first comment after the licence line."""
    match = re.match(r"(?://[^\n]*\n|/\*[^\n]*SPDX[^\n]*\*/\n)*\s*/\*(.*?)\*/", text, re.S)
    return re.sub(r"\n\s*\*", " ", match[1]) if match else ""


def check_shape(path, text):
    lines = text.split("\n")
    if "SPDX-License-Identifier:" not in lines[0]:
        yield f"{path}:1: the first line does not name the licence (SPDX-License-Identifier)"
    if len(re.findall(r"[.:;](?=\s|$)", opening(text))) < 2:
        yield f"{path}:2: opens without two sentences on what lives here, who calls it, the invariant"
    if len(lines) > LINES_MAX:
        yield f"{path}:{LINES_MAX}: {len(lines)} lines, at most {LINES_MAX}"
    start = None
    for number, line in enumerate(lines, 1):
        if len(line.expandtabs(8)) > COLUMNS_MAX and "FUZZ_SOURCES:" not in line:
            yield f"{path}:{number}: {len(line.expandtabs(8))} columns, at most {COLUMNS_MAX}"
        if line != line.rstrip():
            yield f"{path}:{number}: blanks at the end of the line"
        if re.match(r" {8}", line):
            yield f"{path}:{number}: indented by blanks, not tabs"
        if line == "{":
            start = number
        elif line == "}" and start:
            if number - start + 1 > FUNCTION_MAX:
                yield f"{path}:{start}: a function of {number - start + 1} lines, at most {FUNCTION_MAX}"
            start = None


def check_atomics(path, text):
    """A function that orders by an atomic says, in it or right above it, with what that pairs."""
    for match in re.finditer(r"^(?:[^\n{}#]|\n(?!\n))*\n\{\n.*?^\}", text, re.S | re.M):
        body = match[0]
        plain = re.sub(r"/\*.*?\*/", lambda c: " " * len(c[0]), body, flags=re.S)
        use = next((m for m in ATOMIC.finditer(plain)
                    if "relaxed" not in plain[m.start():plain.find(";", m.start())]), None)
        comments = " ".join(re.findall(r"/\*.*?\*/", body, re.S))
        if use and not ORDER.search(comments):
            line = text.count("\n", 0, match.start() + use.start()) + 1
            yield f"{path}:{line}: {use[1]} without a comment that names its pair or its order"


def check(top, paths):
    faults = []
    for path in paths:
        with open(os.path.join(top, path), encoding="utf-8") as file:
            text = file.read()
        faults += check_shape(path, text)
        if path.startswith("libfabricmgr/") and path != "libfabricmgr/base/atomic.h":
            faults += check_atomics(path, text)
    return faults


def check_words(top, paths):
    faults = []
    for path in paths:
        with open(os.path.join(top, path), encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                match = WORDS.search(line)
                if match:
                    faults.append(f"{path}:{number}: \"{match[0]}\" does not belong here")
    return faults


def check_documents(top, pages, texts):
    """Functions (`fm_x()`) and paths (`folder/file`) that pages name have to be there."""
    faults = []
    code = set()
    for path in texts:
        with open(os.path.join(top, path), encoding="utf-8", errors="replace") as file:
            code |= set(re.findall(r"\b\w+(?=\()", file.read()))
    folders = {path.split("/")[0] for path in texts}
    named = {os.path.basename(path) for path in texts if path.endswith(".md")}
    for path in texts:
        if path.startswith("tests/house/"):
            continue
        with open(os.path.join(top, path), encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                for name in re.findall(r"(?<![\w.*%}-])([\w-]+\.md)\b", line):
                    if name not in named:
                        faults.append(f"{path}:{number}: there is no page {name}")
    for page in pages:
        with open(os.path.join(top, page), encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                for name in re.findall(r"`(\w+)\(\)`", line):
                    if name not in code and not name.startswith("MEMBARRIER"):
                        faults.append(f"{page}:{number}: {name}() is nowhere in the code")
                for path in re.findall(r"`([\w.-]+(?:/[\w.-]+)+/?)`", line):
                    places = [top, os.path.dirname(os.path.join(top, page))]
                    if "NAME" not in path and path.split("/")[0] in folders and \
                            not any(os.path.exists(os.path.join(p, path)) for p in places):
                        faults.append(f"{page}:{number}: {path} is not there")
    return faults
