# SPDX-License-Identifier: Apache-2.0
"""A virtual machine for tests: its archive of files, its start under QEMU without KVM, and what its kernel said.

Called by `run` (one command for a person) and check.py (the suites). An Archive holds busybox, kernel
modules in the order of their dependencies, programs with their libraries. Nothing of the host is
shared but what the caller puts in; the exit status of QEMU means nothing, the log decides.
"""
import glob
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
BUSYBOX = "/bin/busybox"
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
# What the kernel must never say while the module is tested.
FAULTS = re.compile(
    r"\bWARNING: |\bBUG: |\bBUG\b.*\bat |\bOops\b|general protection fault|Kernel panic|KASAN|KFENCE|UBSAN|"
    r"Call Trace:|INFO: (?:task|possible|trying|rcu|lockdep)|possible .* detected|refcount_t:|list_(?:add|del) corruption|"
    r"sleeping function called|soft lockup|hung_task|unreferenced object|suspicious RCU|"
    r"vm: insmod .* failed|scheduling while atomic|Bad page|page allocation failure|Objects remaining")
END = re.compile(r"vm: end (\d+)")


def library_paths(program):
    """The libraries of @program, as the loader finds them; none for a script or a static program."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    missing = re.findall(r"(\S+) => not found", done.stdout)
    if missing:
        sys.exit(f"{program}: its libraries are not there: {', '.join(missing)}")
    return re.findall(r"(/\S+) \(0x", done.stdout)


class Archive:
    """An uncompressed cpio archive ("newc"), which the kernel unpacks into its first file system."""

    def __init__(self, kernel):
        self.kernel = kernel
        with open(f"{kernel}/release", encoding="utf-8") as file:
            self.release = file.read().strip()
        self.entries = {}
        self.modules = []  # lines of /modules/list
        for folder in ("bin", "dev", "proc", "sys", "tmp", "modules", "etc"):
            self.folder(folder)
        self.device("dev/console", 5, 1)
        self.device("dev/null", 1, 3)
        self.file("bin/busybox", BUSYBOX)
        self.file("init", f"{HERE}/init")
        self.text("etc/passwd", "root:x:0:0::/root:/bin/sh\none:x:1001:1001::/tmp:/bin/sh\n"
                                "two:x:1002:1002::/tmp:/bin/sh\n")
        self.text("etc/group", "root:x:0:\nfabricmgr:x:900:one\none:x:1001:\ntwo:x:1002:\n")

    def _put(self, path, mode, data=b"", device=(0, 0)):
        path = path.strip("/")
        parent = os.path.dirname(path)
        if parent and parent not in self.entries:
            self.folder(parent)
        self.entries[path] = (mode, data, device)

    def folder(self, path):
        self._put(path, 0o040755)

    def device(self, path, major, minor):
        self._put(path, 0o020600, device=(major, minor))

    def text(self, path, text, mode=0o644):
        self._put(path, 0o100000 | mode, text.encode())

    def file(self, path, source):
        """The bytes and the mode of the host's file @source."""
        with open(source, "rb") as file:
            self._put(path, 0o100000 | (os.stat(source).st_mode & 0o777), file.read())

    def program(self, path, source):
        """An executable, with its libraries where its loader looks for them."""
        self.file(path, source)
        for library in library_paths(source):
            self.file(library, os.path.realpath(library))
        if library_paths(source):
            # Asked for by name when a thread ends.
            for helper in glob.glob("/lib/x86_64-linux-gnu/libgcc_s.so.1"):
                self.file(helper, os.path.realpath(helper))

    def module(self, name, parameters=""):
        """A module of the kernel's own with all that it needs; nothing to do where it is built in."""
        done = subprocess.run(["modprobe", "-d", os.path.join(self.kernel, "root"), "-S", self.release,
                               "--ignore-install", "--show-depends", name], capture_output=True, text=True,
                              env={**os.environ, "PATH": PATH}, check=False)
        for line in done.stdout.splitlines():
            words = line.split()
            if words[0] == "insmod":
                self.module_file(words[1], parameters if line == done.stdout.splitlines()[-1] else "")
        return done.returncode == 0

    def module_file(self, source, parameters="", is_loaded=True):
        with open(source, "rb") as file:
            data = file.read()
        name = os.path.basename(source)
        if name.endswith(".xz"):
            data, name = lzma.decompress(data), name[:-3]
        self._put(f"modules/{name}", 0o100644, data)
        line = f"/modules/{name} {parameters}".rstrip()
        if is_loaded and not any(known.split()[0] == f"/modules/{name}" for known in self.modules):
            self.modules.append(line)

    def write(self, path):
        self.text("modules/list", "".join(line + "\n" for line in self.modules))
        with open(path, "wb") as out:
            for number, (name, (mode, data, device)) in enumerate([*self.entries.items(), ("TRAILER!!!", (0, b"", (0, 0)))]):
                fields = (number + 1, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0)
                head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
                out.write(head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4))


class Machine:
    """One run of a virtual machine: start(), then wait(); log and output are text afterwards."""

    def __init__(self, kernel, archive, folder, options=(), memory_mib=None, command_line="", is_person=False):
        self.folder = folder
        self.log_path, self.output_path = f"{folder}/log", f"{folder}/output"
        self.is_debug = not os.path.exists(f"{kernel}/vmlinux")
        archive.write(f"{folder}/initrd")
        memory = memory_mib or 1536
        image = f"{kernel}/bzImage" if self.is_debug else f"{kernel}/vmlinux"
        self.command = [
            # la57: KASAN of 6.1 takes a reset of the feature word in early start for four-level paging.
            "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max,la57=off", "-M", "q35,kernel-irqchip=split",
            "-smp", "2,sockets=2,cores=1", "-m", str(memory), *numa(memory),
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-kernel", image, "-initrd", f"{folder}/initrd",
            "-append", "console=ttyS0 quiet panic=-1 oops=panic tsc=reliable printk.devkmsg=on init_on_alloc=0 "
                       # A machine that has to wait for its host is no fault of the module's.
                       "watchdog_thresh=60 rcupdate.rcu_cpu_stall_timeout=120 "
                       f"kfence.sample_interval=100 {command_line}",
            "-serial", f"file:{self.log_path}",
            "-serial", "mon:stdio" if is_person else f"file:{self.output_path}", *options]
        self.is_person = is_person
        self.process = None

    def start(self):
        self.started = time.monotonic()
        streams = {} if self.is_person else {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
                                             "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(self.command, **streams)
        return self

    def wait(self, limit_s):
        """Returns the job's exit status; None when the end mark is missing."""
        try:
            self.process.wait(max(1, limit_s - (time.monotonic() - self.started)))
            self.is_late = False
        except subprocess.TimeoutExpired:
            self.is_late = True
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        self.seconds = time.monotonic() - self.started
        self.log = read(self.log_path)
        self.output = read(self.output_path)
        said = self.process.stdout.read().decode(errors="replace") if self.process.stdout else ""
        if not self.log and said:
            sys.exit(f"{self.command[0]}: {said}")
        end = END.search(self.log)
        return int(end[1]) if end else None

    def faults(self):
        return faults(self.log)


def faults(log):
    """What a kernel complained of in its @log, each with the lines around it."""
    lines = log.splitlines()
    found, last = [], -100
    for number, line in enumerate(lines):
        if FAULTS.search(line):
            if number - last > 40:
                found.append("\n".join(lines[max(0, number - 2):number + 40]))
            last = number
    return found


def numa(memory_mib):
    """Two nodes, one processor and half of the memory each, at a distance of 21."""
    half = memory_mib // 2
    return ["-object", f"memory-backend-ram,id=m0,size={half}M", "-numa", "node,nodeid=0,cpus=0,memdev=m0",
            "-object", f"memory-backend-ram,id=m1,size={half}M", "-numa", "node,nodeid=1,cpus=1,memdev=m1",
            "-numa", "dist,src=0,dst=1,val=21", "-numa", "dist,src=1,dst=0,val=21"]


def nvme(folder, bytes_=64 << 20):
    """An NVMe drive with a controller memory buffer below a PCIe switch, and a second one beside the switch."""
    for name in ("drive0", "drive1"):
        with open(f"{folder}/{name}", "wb") as file:
            file.truncate(bytes_)
    return ["-drive", f"id=d0,if=none,format=raw,file={folder}/drive0",
            "-drive", f"id=d1,if=none,format=raw,file={folder}/drive1",
            "-device", "pcie-root-port,id=rp0,chassis=1,slot=1", "-device", "x3130-upstream,id=up0,bus=rp0",
            "-device", "xio3130-downstream,id=dn0,bus=up0,chassis=2,slot=2",
            "-device", "nvme,serial=s0,drive=d0,bus=dn0,cmb_size_mb=64",
            "-device", "pcie-root-port,id=rp1,chassis=3,slot=3", "-device", "nvme,serial=s1,drive=d1,bus=rp1"]


def network(path, is_first):
    """A network card; the two machines that name the same socket @path hold the ends of one wire."""
    return ["-netdev", f"stream,id=n0,server={'on' if is_first else 'off'},addr.type=unix,addr.path={path}",
            "-device", f"virtio-net-pci,netdev=n0,mac=52:54:00:00:00:0{1 if is_first else 2},host_mtu=9000,romfile="]


def run_pair(first, second, limit_s):
    """Starts two machines on one wire and waits for both; the first holds the socket. Returns both statuses."""
    path = next(option for option in first.command if "addr.path=" in option).split("addr.path=")[1]
    if os.path.exists(path):
        os.unlink(path)
    first.start()
    while not os.path.exists(path) and first.process.poll() is None:
        time.sleep(0.01)
    second.start()
    return [vm.wait(limit_s) for vm in (first, second)]


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace").replace("\r", "")
    except FileNotFoundError:
        return ""


def work_folder():
    """A folder for one run; short enough for the address of a socket in it."""
    return tempfile.mkdtemp(prefix="fm-vm-")


def forget(folder):
    shutil.rmtree(folder, ignore_errors=True)


def need():
    """The programs of the host without which nothing starts."""
    missing = [name for name in ("qemu-system-x86_64", "modprobe", "rdma") if not shutil.which(name, path=PATH)]
    if not os.path.exists(BUSYBOX) or missing:
        sys.exit(f"virtual machines need {', '.join(missing) or BUSYBOX}: make deps-vm installs them")
