# SPDX-License-Identifier: Apache-2.0
"""Every message in a log has a code, each code is in the table and in the runbook, and none is left over."""
import os
import re

import pytest

from test_house import TOP, tracked

TABLE = "libfabricmgr/include/fabricmgr_messages.h"
RUNBOOK = "Documentation/runbook.md"
LEVELS = {"ERROR": "error", "WARNING": "warning", "INFO": "info", "DEBUG": "debug"}


def read(path):
    with open(os.path.join(TOP, path), encoding="utf-8") as file:
        return file.read()


def calls(text):
    """(line, levels, codes, format) of each call of fm_log(); codes and format None where it has none."""
    for match in re.finditer(r"\bfm_log\((?!enum )", text):
        line = text.count("\n", 0, match.start()) + 1
        head = re.match(r"([^\";]*?),\s*(?:(FM\d+)\s+)?\"((?:[^\"\\]|\\.)*)\"", text[match.end():])
        levels = set(re.findall(r"FM_LOG_(\w+)", head[1])) if head else set()
        yield line, levels, head and head[2], head and head[3]


def sources():
    return [path for path in tracked(".c", ".h") if path.startswith(("libfabricmgr/", "engine/", "tools/", "kernels/"))
            and path not in ("libfabricmgr/include/fabricmgr.h", TABLE)]


def used():
    """code: levels it is logged with"""
    found = {}
    for path in sources():
        for line, levels, code, _ in calls(read(path)):
            assert code and levels, f"{path}:{line}: a message without a code of {TABLE}, or without a level"
            found.setdefault(code, set()).update(LEVELS[level] for level in levels)
    return found


def test_every_message_has_a_code_and_every_code_a_message():
    table = dict(re.findall(r'^#define (FM\d{4}) "(FM\d{4}) "\s*/\* \S.* \*/$', read(TABLE), re.M))
    assert len(table) == len(re.findall(r"#define FM\d", read(TABLE))) and all(a == b for a, b in table.items())
    assert list(table) == sorted(table)
    assert set(used()) == set(table)


def test_the_runbook_has_a_row_for_each_with_its_level():
    rows = re.findall(r"^\| (FM\d{4}) \| (\w+) \| \S.* \| \S.* \|$", read(RUNBOOK), re.M)
    assert len(dict(rows)) == len(rows) == len(re.findall(r"^\| FM", read(RUNBOOK), re.M))
    found = used()
    assert {code for code, _ in rows} == set(found)
    for code, level in rows:
        assert level in found[code], (code, level, found[code])


@pytest.mark.parametrize("text, code", [
    ('fm_log(FM_LOG_INFO, FM1002 "version %s", x);', "FM1002"),
    ('fm_log(FM_LOG_INFO,\n\t       FM1002 "version");', "FM1002"),
    ('fm_log(a == b ? FM_LOG_INFO : FM_LOG_ERROR, FM1002 "%s", x);', "FM1002"),
    ('fm_log(FM_LOG_INFO, "version");', None), ("fm_log(FM_LOG_INFO, text);", None)])
def test_a_call_is_read(text, code):
    assert [found for _, _, found, _ in calls(text)] == [code]
