# SPDX-License-Identifier: Apache-2.0
"""The test's side of tests/tools/fail_alloc.c: arms a running program, or one about to start, so that
its n-th allocation from then on fails, and says whether and where it did."""
import mmap
import os
import struct
import subprocess

from conftest import TOP

FRAMES, NAME = 24, 48
FRAME = 8 + NAME
SIZE = 40 + FRAMES * FRAME


class FailAlloc:
    def __init__(self, path):
        with open(path, "wb") as file:
            file.write(bytes(SIZE))
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), SIZE)
        self.environment = {
            "LD_PRELOAD": f"{TOP}/build/release/tests/fail_alloc.so",
            "FABRICMGR_FAIL_ALLOC": path,
            "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0",
        }

    def _set(self, at, value):
        self.memory[at:at + 8] = struct.pack("<Q", value)

    def arm(self, n, lasts=False):
        """The n-th allocation from now on fails, and with @lasts all after it until disarm(). 2**63:
        none does, but they are counted."""
        self.memory[0:SIZE] = bytes(SIZE)
        self._set(24, int(lasts))
        self._set(0, n)

    def disarm(self):
        self._set(0, 0)

    @property
    def count(self):
        return struct.unpack_from("<Q", self.memory, 8)[0]

    @property
    def has_failed(self):
        return struct.unpack_from("<Q", self.memory, 16)[0] != 0

    def frames(self):
        """(file name, offset) from the failed call outwards, without the interposers' own."""
        n = struct.unpack_from("<Q", self.memory, 32)[0]
        found = []
        for i in range(n):
            offset, name = struct.unpack_from(f"<Q{NAME}s", self.memory, 40 + i * FRAME)
            found.append((name.rstrip(b"\0").decode(), offset))
        return [f for f in found if f[0] != "fail_alloc.so" and not f[0].startswith("libasan")]

    def is_in(self, library):
        """Whether @library itself asked for the memory (perhaps through libc)."""
        callers = [name for name, _ in self.frames() if not name.startswith("libc.so")]
        return bool(callers) and callers[0].startswith(library)

    def where(self, binary):
        """For messages: the calls inside @binary by function and line, others by file."""
        lines = []
        for name, offset in self.frames():
            if name != os.path.basename(binary):
                lines.append(f"{name}+{offset:#x}")
                continue
            out = subprocess.run(["addr2line", "-fse", binary, hex(offset - 1)], capture_output=True,
                                 text=True, check=False).stdout.split()
            lines.append(" ".join(out) or hex(offset))
        return "\n  ".join(["allocation failed in:"] + lines)
