# SPDX-License-Identifier: Apache-2.0
"""make demo's launcher as a person meets it: it answers, and it leaves nothing behind."""
import glob
import os
import re
import signal
import subprocess
import time

import pytest

from conftest import BIN, MODEL, TOP, needs_model

pytestmark = needs_model


def launch(**env):
    return subprocess.Popen(["/usr/bin/python3", "-I", "-S", f"{TOP}/tools/demo.py", "--bin", BIN, "--model", MODEL],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, **env})


def left_behind(pid):
    """Processes whose environment or parent is the demo's, and its folders in /tmp."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                command = file.read().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if f"demo-{pid}-" in command or f"demo.{pid}." in command:
            found.append(command)
    return found + glob.glob(f"/tmp/fabricmgr-demo-{pid}-*")


def test_the_demo_answers_and_leaves_nothing():
    demo = launch()
    output, _ = demo.communicate(timeout=300)
    assert demo.returncode == 0, output
    assert "frames" in output and re.search(r"disaggregated", output), output
    ratio = re.search(r"warm/cold\D*([0-9.]+)", output)
    assert ratio, output
    assert not left_behind(demo.pid)


@pytest.mark.parametrize("seconds", [0.1, 0.7, 1.5, 4.0])
def test_an_interrupted_demo_leaves_nothing(seconds):
    demo = launch()
    time.sleep(seconds)
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=60)
    assert not left_behind(demo.pid)
    if seconds == 0.1 and demo.returncode == -signal.SIGINT:
        return  # a slow machine: it was Python's own start that was interrupted, nothing of ours had begun
    assert demo.returncode == 130, output
    assert "Traceback" not in output


def test_a_killed_demo_takes_its_children_along():
    demo = launch()
    time.sleep(2.0)
    demo.kill()
    demo.wait()
    time.sleep(1.0)
    for path in glob.glob(f"/tmp/fabricmgr-demo-{demo.pid}-*"):
        subprocess.run(["rm", "-rf", path], check=True)  # a folder may stay; processes may not
    assert not left_behind(demo.pid)
