#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the kernel module's tests in virtual machines: check.py 6.1 6.12 (`make check-vm`, `make check-vm-debug`).

Every program of tests/vm/tests runs in one machine of each kernel, the module freshly loaded before it and
unloaded after it. Failed is a program, an unload, any complaint in the kernel's log, a leak, memory
that does not come back and a machine that does not come to its end. At last faults are planted in the
same machine: a harness that does not find them fails, too. Programs for a pair of machines run in the end, one
end on the first kernel and the other on the last.
"""
import argparse
import glob
import os
import re
import shlex
import shutil
import sys

sys.dont_write_bytecode = True

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(TOP, "tests")]

import kernels  # noqa: E402
import machine  # noqa: E402
from suites import common, kmod  # noqa: E402

# Of the kernel's own, loaded before anything else where they are not built in.
MODULES = ("nvme", "crc32_generic", "rdma_rxe", "dummy", "veth", "ib_uverbs", "rdma_ucm", "vgem")
HOST_MODULES = ("virtio_pci", "9p", "9pnet_virtio", "overlay")
LIMIT_S, MACHINE_LIMIT_S = 120, {"6.1": 420, "6.12": 420, "debug": 900}
# What the debug kernel alone finds; lockdep is off after KASAN's first report.
PLANTED = {"6.1": ("warning",), "6.12": ("warning",), "debug": ("warning", "sleep", "use-after-free")}
# Faults of plants.h, each with the programs that must find it; the last cannot be unloaded. They run on the
# first kernel alone: what finds a fault on one does so on another.
PLANTS = (("NO_ZAP", "stage"), ("ANY_USER", "region"), ("NOT_CLEARED", "region"), ("NOT_CLEARED", "stage"),
          ("LOST_PAGES", "region"), ("LOST_PAGES", "fuzz_uapi"), ("WAITS_ON", "ring"), ("WAITS_ON", "kills 30 1"))
BOOTS_MAX = 3
SKIPPED = 4  # exit status, as kselftest has it
# Memory wanders; a chunk of a region is 2 or 4 MiB.
LOST_KIB_MAX = 1536


# The pool's process tests (tests/process) whose daemons keep their memory in the module: on one kernel, and a few,
# since python is slow there; PROCESSES="FILE..." names others, in half an hour.
PROCESS_KERNEL, PROCESS_LIMIT_S = "6.1", 120
PROCESSES = ("test_warm.py::test_a_killed_daemon_loses_nothing_and_a_reader_notices_nothing",
             "test_warm.py::test_groups_go_on_as_groups",
             "test_warm.py::test_what_was_staged_is_nobody_elses_while_its_writer_lives",
             "test_pool.py::test_two_clients_share_the_same_memory")
HOST = ("-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap")


class Program:
    """A test program and what its source asks for: `VM: unloaded, limit 60, only 6.12, not debug` in a comment."""

    def __init__(self, source):
        self.name = os.path.basename(source)[:-2]
        self.path = f"{TOP}/build/release/tests/vm/{self.name}"
        self.arguments = []
        with open(source, encoding="utf-8") as file:
            wishes = re.search(r"\bVM: ([^\n*]*)", file.read())
        self.wishes = [wish.strip(" .") for wish in wishes[1].split(",")] if wishes else []

    def wish(self, word, default=None):
        found = [wish[len(word):].strip() for wish in self.wishes if wish.split()[0] == word]
        return found[0] if found else default

    def is_for(self, kernel):
        return self.wish("only", kernel) == kernel and self.wish("not") != kernel

    @property
    def is_for_a_pair(self):
        return self.wish("pair") is not None


class Processes:
    """The process tests as one program more: processes.sh, with its arguments."""

    def __init__(self):
        given = os.environ.get("PROCESSES", "").split()
        self.name, self.path = "processes", f"{HERE}/processes.sh"
        self.wishes = [f"limit {1800 if given else PROCESS_LIMIT_S}"]
        tests = [f"tests/process/{test}" for test in given or PROCESSES]
        self.arguments = [sys.executable if common.have_pytest() else "/usr/bin/python3", TOP, *tests]

    wish = Program.wish


def programs(kernel, only, for_a_pair=False):
    found = [Program(source) for source in sorted(glob.glob(f"{HERE}/tests/*.c"))]
    chosen = [program for program in found if program.is_for(kernel) and program.is_for_a_pair == for_a_pair
              and (not only or program.name in only)]
    has_processes = "processes" in only if only else kernel == PROCESS_KERNEL
    return chosen + [Processes()] if has_processes and not for_a_pair and kernel != "debug" else chosen


def fill_common(archive, kernel, chosen, has_module):
    """What every machine needs; returns (the head of its job, its lines that run the programs)."""
    for name in MODULES + (HOST_MODULES if is_hosted(chosen) else ()):
        archive.module(name)
    for path in glob.glob(f"{TOP}/build/kmod/{kernel}/*.ko") + glob.glob(f"{TOP}/build/vm-modules/{kernel}/*.ko"):
        archive.module_file(path, is_loaded=False)
    for program in chosen:
        archive.program(f"tests/{program.name}", program.path)
    archive.program("usr/bin/fabricmgrd", f"{TOP}/build/release/bin/fabricmgrd")
    for path in glob.glob("/usr/lib/x86_64-linux-gnu/libibverbs/librxe*.so"):
        archive.program(path, path)
    for path in glob.glob("/etc/libibverbs.d/rxe.driver"):
        archive.file(path, path)
    archive.program("usr/bin/rdma", shutil.which("rdma", path=machine.PATH))
    with open(f"{HERE}/job.sh", encoding="utf-8") as file:
        head = [f"export FABRICMGR_KERNEL={kernel} LOST_KIB_MAX={LOST_KIB_MAX}", file.read()]
    lines = []
    for program in chosen:
        is_loaded = "no" if not has_module or "unloaded" in program.wishes else "yes"
        lines.append(" ".join(["program", program.name, str(program.wish("limit", LIMIT_S)), is_loaded,
                               *map(shlex.quote, program.arguments)]))
    return head, lines


def is_hosted(chosen):
    """Whether the machine sees the host's files."""
    return any(isinstance(program, Processes) for program in chosen)


def fill(archive, kernel, chosen, has_module):
    head, lines = fill_common(archive, kernel, chosen, has_module)
    lines = [*head, "echo @unknown $(unknown_kib)", *lines, "echo @unknown $(unknown_kib)"]
    plants = [] if kernel != "6.1" or not has_module else PLANTS
    for fault, _ in plants:
        archive.file(f"modules/plant-{fault}.ko", f"{TOP}/build/kmod-plants/{kernel}/{fault}/fabricmgr.ko")
    lines.append("scan_for_leaks")
    lines += [f"FUZZ_SECONDS=3 plant {fault} {program}" for fault, program in plants
              if program.split()[0] in {one.name for one in chosen}]
    lines += [f"planted {fault}" for fault in PLANTED[kernel]]
    archive.text("job", "\n".join(lines) + "\n")


def verdict(text, status):
    """(passed, failed, skipped) of one program, from its lines of TAP; the plan at its end has to fit."""
    lines = re.findall(r"^(not ok|ok) \d+(?: - )?(.*)$", text, re.M)
    skipped = sum("# SKIP" in line for _, line in lines)
    failed = sum(word == "not ok" for word, _ in lines)
    plan = re.findall(r"^1\.\.(\d+)( # SKIP)?", text, re.M)
    if plan and plan[-1] == ("0", " # SKIP") and status == SKIPPED:
        return 0, 0, 1
    if not lines or not plan or int(plan[-1][0]) != len(lines) or (status != 0 and not failed):
        failed += 1
    return sum(word == "ok" for word, _ in lines) - skipped, failed, skipped


def report_programs(place, chosen, vm):
    """@place: "6.1", or one of a pair."""
    for program in chosen:
        found = re.search(rf"^@begin {program.name}\n(.*?)^@end {program.name} (\d+) ([\d.]+) ([\d.]+)$",
                          vm.output, re.S | re.M)
        if not found:
            begun = vm.output.find(f"@begin {program.name}\n")
            text = vm.output[begun:] if begun >= 0 else "it was not begun"
            common.report(f"vm/{place}/{program.name}", 0, 1, 0, 0.0, f"{text}\nit did not end\n" + tail(vm.log))
            continue
        text, status = found[1] + f"exit status {found[2]}\n", int(found[2])
        result = verdict(text, status)
        text = re.sub(r"^(.*# SKIP.*)$", r"SKIP: \1", text, flags=re.M)
        common.report(f"vm/{place}/{program.name}", *result, float(found[4]) - float(found[3]), text)


def tail(text, lines=40):
    return "\n".join(text.splitlines()[-lines:])


def split_log(log):
    """The log without what was planted, and {fault: its part}."""
    parts = dict(re.findall(r"vm: planted (\S+)\n(.*?)vm: planted end", log, re.S))
    log = re.sub(r"[^\n]*vm: planted \S+\n.*?vm: planted end", "", log, flags=re.S)
    own = []
    # A report is its first line and the lines of kmemleak that follow it.
    for report in re.split(r"(?=^[^\n]*kmemleak: unreferenced object)", log, flags=re.M):
        lines = re.match(r"(?:[^\n]*kmemleak: [^\n]*\n)*", report)[0]
        if "[planted]" in lines:
            parts["leak"] = lines
            report = report[len(lines):]
        own.append(report)
    return "".join(own), parts


def where(log, fault):
    """The program during which the log got @fault."""
    before = re.findall(r"vm: begin (\S+)", log[:log.find(fault)])
    return f"during {before[-1]}:\n{fault}" if before else fault


def report_machine(kernel, vm, status, place=None):
    place = place or kernel
    # The kernel's own start is not judged, but for modules that did not load.
    begun = vm.log.find("vm: begin")
    early = "".join(re.findall(r"^.*vm: insmod .*\n", vm.log[:begun], re.M)) if begun >= 0 else vm.log
    own, planted = split_log(early + vm.log[max(begun, 0):])
    faults = [where(own, fault) for fault in machine.faults(own)]
    common.report(f"vm/{place}/the kernel's log", int(not faults), int(bool(faults)), 0, vm.seconds, "\n".join(faults))
    is_ended = status == 0
    common.report(f"vm/{place}/the end", int(is_ended), int(not is_ended), 0, vm.seconds,
                  "" if is_ended else f"{'stopped at its limit' if vm.is_late else 'it ended early'}\n" + tail(vm.log))
    unknown = [int(kib) for kib in re.findall(r"^@unknown (\d+)$", vm.output, re.M)]
    lost = unknown[1] - unknown[0] if len(unknown) == 2 else LOST_KIB_MAX + 1
    if place != kernel:  # network cards keep pages; what is lost shows in the machines without
        return
    if kernel != "debug":  # where KASAN holds back what was freed
        common.report(f"vm/{place}/memory comes back", int(lost <= LOST_KIB_MAX), int(lost > LOST_KIB_MAX), 0, 0.0,
                      f"NOTE: {lost} KiB more than before the programs belong to nobody")
    for fault, program, result in re.findall(r"^@plant (\S+) (\S+) (\d+)$", vm.output, re.M):
        is_found = result not in ("0", str(SKIPPED))
        common.report(f"vm/{kernel}/{program} finds {fault}", int(is_found), int(not is_found), 0, 0.0)
    for fault in PLANTED[kernel] + (("leak",) if kernel == "debug" else ()):
        is_found = bool(machine.faults(planted.get(fault, "")))
        common.report(f"vm/{kernel}/a planted {fault} is found", int(is_found), int(not is_found), 0, 0.0,
                      planted.get(fault, "it was not planted"))


def is_built(kernel):
    return os.path.exists(f"{TOP}/build/kmod/{kernel}/fabricmgr.ko")


def is_worth_another(vm, status, left):
    """A kernel that patches its own code while it starts may stumble under emulation; nothing of ours ran."""
    if status is not None or vm.is_late or "vm: begin" in vm.log or not left:
        return False
    print(f"NOTE: a kernel did not come to its first program, and is started again:\n{tail(vm.log, 8)}", flush=True)
    return True


def check(kernel, only):
    chosen = programs(kernel, only)
    if not chosen:
        return
    folder = kernels.find(kernel)
    if not folder:
        print("SKIP: make check-vm-debug: no debug kernel is at hand: `make debug-kernel` builds one (an hour), "
              "DEBUG_KERNEL=FOLDER names a built one", flush=True)
        common.report(f"vm/{kernel}", 0, 0, 1, 0.0)
        return
    has_module = is_built(kernel)
    if not has_module:
        is_here = os.path.exists(f"{TOP}/kmod/Kbuild")
        common.report(f"vm/{kernel}/fabricmgr.ko", 0, int(is_here), int(not is_here), 0.0,
                      f"SKIP: it is not built for {kernel}: make kmod")
    work = machine.work_folder()
    try:
        archive = machine.Archive(folder)
        fill(archive, kernel, chosen, has_module)
        for left in reversed(range(BOOTS_MAX)):
            options = [*machine.nvme(work), *(HOST if is_hosted(chosen) else ())]
            vm = machine.Machine(folder, archive, work, options)
            status = vm.start().wait(2400 if "PROCESSES" in os.environ else MACHINE_LIMIT_S[kernel])
            if not is_worth_another(vm, status, left):
                break
        report_programs(kernel, chosen, vm)
        report_machine(kernel, vm, status)
    finally:
        machine.forget(work)


def check_pair(kernels_of, only):
    """Programs whose one side runs on @kernels_of[0] and whose other on the second, with a network between them."""
    chosen = [program for program in programs(kernels_of[0], only, for_a_pair=True) if program.is_for(kernels_of[1])]
    if not chosen or not all(is_built(kernel) for kernel in kernels_of):
        return
    sides = list(zip(kernels_of, ("lender", "borrower")))
    works = [machine.work_folder() for _ in sides]
    try:
        archives = []
        for kernel, side in sides:
            archive = machine.Archive(kernels.find(kernel))
            for name in ("virtio_pci", "virtio_net"):
                archive.module(name)
            head, lines = fill_common(archive, kernel, chosen, True)
            archive.text("job", "\n".join([f"export FABRICMGR_SIDE={side}", *head, *lines]) + "\n")
            archives.append(archive)
        for left in reversed(range(BOOTS_MAX)):
            vms = [machine.Machine(kernels.find(kernel), archive, work, machine.network(f"{works[0]}/net", side == "lender"))
                   for (kernel, side), archive, work in zip(sides, archives, works)]
            statuses = machine.run_pair(*vms, MACHINE_LIMIT_S[kernels_of[0]])
            # Both wait for the other: one that did not start leaves none of the two a result.
            if not any([is_worth_another(vm, status, left) for vm, status in zip(vms, statuses)]):
                break
        for (kernel, side), vm, status in zip(sides, vms, statuses):
            report_programs(f"{kernel} as {side}", chosen, vm)
            report_machine(kernel, vm, status, f"{kernel} as {side}")
    finally:
        for work in works:
            machine.forget(work)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="+", choices=(*kernels.DEBIAN, "debug"))
    parser.add_argument("--only", action="append", help="this program (may be repeated)")
    options = parser.parse_args()
    machine.need()
    if not options.only and "debug" not in options.kernels:
        kmod.kmod(kernels.checkpatch())
    for kernel in options.kernels:
        check(kernel, options.only)
    if "debug" not in options.kernels:
        check_pair((options.kernels[0], options.kernels[-1]), options.only)
    total = common.TOTAL
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not (total["passed"] or total["skipped"]) else 0


if __name__ == "__main__":
    sys.exit(main())
