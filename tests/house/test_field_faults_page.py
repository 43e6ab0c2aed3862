# SPDX-License-Identifier: Apache-2.0
"""Documentation/field-faults.md names tests that are there, and every test that was written for it."""
import os
import re

import pytest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = "Documentation/field-faults.md"
NAME = re.compile(r"`(\w+\.(?:py|c)): (\w+)`")


def read(path):
    with open(f"{TOP}/{path}", encoding="utf-8") as file:
        return file.read()


def faults_of(text):
    faults = []
    for file, name in NAME.findall(text):
        path = f"tests/{'process' if file.endswith('.py') else 'unit'}/test_{file}"
        sign = f"def test_{name}(" if file.endswith(".py") else f"START_TEST({name})"
        if not os.path.exists(f"{TOP}/{path}"):
            faults.append(f"{path} is not there")
        elif sign not in read(path):
            faults.append(f"{path} has no {sign}")
    return faults


def test_every_test_that_the_page_names_is_there():
    text = read(PAGE)
    assert len(NAME.findall(text)) > 40
    assert not faults_of(text)
    for line in text.splitlines():
        if line.startswith("| ") and not re.match(r"\| (?:fault|---)", line):
            assert NAME.search(line.split("|")[-2]), f"no test stands in: {line}"


def test_every_test_of_a_fault_stands_on_the_page():
    named = set(NAME.findall(read(PAGE)))
    for file in ("field_faults.py", "field_faults_node.py"):
        for name in re.findall(r"^def test_(\w+)\(", read(f"tests/process/test_{file}"), re.M):
            assert (file, name) in named, f"{PAGE} does not name {name}"


@pytest.mark.parametrize("line", ["`pool.py: no_such_test`", "`no_such_file.py: x`", "`pool_core.c: no_such_test`"])
def test_a_name_of_nothing_is_found(line):
    assert len(faults_of(line)) == 1
