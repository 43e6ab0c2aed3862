# SPDX-License-Identifier: Apache-2.0
"""The file through which a tester and programs built with VARIANT=kill talk: which steps were passed,
which is to kill, which has killed (libfabricmgr/include/fabricmgr_kill_point.h has the layout).
"""
import mmap
import struct

STEP = struct.Struct("48sQII")
STEPS_MAX = 256


class KillFile:
    def __init__(self, path):
        self.path = path
        with open(path, "w+b") as file:
            file.truncate(STEP.size * STEPS_MAX)
            self.memory = mmap.mmap(file.fileno(), STEP.size * STEPS_MAX)

    def steps(self):
        """{name: (number, passes, kills)}"""
        found = {}
        for number in range(STEPS_MAX):
            name, passes, _, kills = STEP.unpack_from(self.memory, number * STEP.size)
            if not name[0]:
                break
            found[name.rstrip(b"\0").decode()] = (number, passes, kills)
        return found

    def kills(self, number):
        return STEP.unpack_from(self.memory, number * STEP.size)[3]

    def arm(self, number, countdown):
        struct.pack_into("I", self.memory, number * STEP.size + 56, countdown)
