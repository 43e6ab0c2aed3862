#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kernels for the virtual machines, kept outside the tree: `kernels.py fetch 6.1 6.12` prints their folders.

A folder CACHE/kernels/NAME has: `vmlinux` (the kernel's ELF file, from the unmodified image of Debian) or
`bzImage`, `modules/` (its modules, with modules.dep), `build/` (what `make -C` needs to build a module for it)
and `release`, the kernel's own version. It comes into being by a rename, so that it is whole or not there.
"""
import argparse
import glob
import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

# What apt is asked for: the name of the package that depends on the newest kernel of a series.
DEBIAN = {"6.1": "linux-image-amd64", "6.12": "linux-image-6.12-amd64"}
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
SECURITY = os.environ.get("DEBIAN_SECURITY_MIRROR", MIRROR.rstrip("/") + "-security")
SUITES = ((MIRROR, "bookworm"), (MIRROR, "bookworm-backports"), (SECURITY, "bookworm-security"))
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def cache_folder():
    base = os.environ.get("CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "fabricmgr")
    return os.path.join(base, "kernels")


def quiet(command, **how):
    """Runs @command; its output is shown only when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **how)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


class Apt:
    """apt with a state of its own: the system's lists and packages stay as they are."""

    def __init__(self, folder):
        self.folder = folder
        for part in ("state/lists/partial", "cache/archives/partial"):
            os.makedirs(f"{folder}/{part}")
        with open(f"{folder}/sources.list", "w", encoding="utf-8") as file:
            for mirror, suite in SUITES:
                file.write(f"deb [arch=amd64 signed-by={KEYRING}] {mirror} {suite} main\n")
        options = {"Dir::State": f"{folder}/state", "Dir::State::status": "/dev/null",
                   "Dir::Cache": f"{folder}/cache", "Dir::Etc::sourcelist": f"{folder}/sources.list",
                   "Dir::Etc::sourceparts": "/dev/null", "APT::Architecture": "amd64",
                   "APT::Sandbox::User": "root", "Acquire::Languages": "none", "Acquire::Retries": "3"}
        self.options = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        quiet(["apt-get", *self.options, "-qq", "update"])

    def depends(self, package, series):
        """The names that the newest @package of @series depends on."""
        text = quiet(["apt-cache", *self.options, "show", package])
        for record in text.split("\n\n"):
            version = re.search(r"^Version: (.*)$", record, re.M)
            if version and (version[1].startswith(f"{series}.") or series is None):
                return re.findall(r"[^,|\s][^,|(\s]*(?= *(?:[,(|]|$))", re.search(r"^Depends: (.*)$", record, re.M)[1])
        sys.exit(f"{package}: the archive has no version {series} of it")

    def download(self, *packages):
        quiet(["apt-get", *self.options, "-qq", "download", *packages], cwd=self.folder)


def extract_vmlinux(image, path):
    """The ELF file inside the bzImage @image: its set-up code need not unpack it at each boot."""
    with open(image, "rb") as file:
        data = file.read()
    # Documentation/x86/boot.rst: setup_sects, then payload_offset and payload_length.
    offset, length = struct.unpack_from("<II", data, 0x248)
    start = ((data[0x1f1] or 4) + 1) * 512 + offset
    payload = data[start:start + length - 4]  # the last four bytes are the unpacked length
    if payload.startswith(b"\xfd7zXZ\0"):
        payload = lzma.decompress(payload)
    elif payload.startswith(b"\x28\xb5\x2f\xfd"):
        payload = subprocess.run(["zstd", "-dcq"], input=payload, stdout=subprocess.PIPE, check=True).stdout
    if not payload.startswith(b"\x7fELF"):
        sys.exit(f"{image}: neither xz nor zstd holds its kernel")
    with open(path, "wb") as file:
        file.write(payload)


def unpack_debian(series, folder):
    """The image, its modules and the headers of the newest Debian kernel of @series, into @folder."""
    apt = Apt(f"{folder}/apt")
    image = next(name for name in apt.depends(DEBIAN[series], series) if name.startswith("linux-image-"))
    release = image[len("linux-image-"):]
    headers = f"linux-headers-{release}"
    more = [name for name in apt.depends(headers, series) if re.match(r"linux-(headers-.*-common|kbuild-)", name)]
    print(f"fetching Linux {release} from {MIRROR} (once; kept in {cache_folder()})", file=sys.stderr, flush=True)
    apt.download(image, headers, *more)
    for package in glob.glob(f"{folder}/apt/*.deb"):
        quiet(["dpkg-deb", "-x", package, f"{folder}/root"])
    shutil.rmtree(f"{folder}/apt")
    root = f"{folder}/root"
    quiet(["depmod", "-b", root, release], env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"})
    extract_vmlinux(f"{root}/boot/vmlinuz-{release}", f"{folder}/vmlinux")
    # The one absolute path in the tree of the headers.
    path = f"{root}/usr/src/{headers}/Makefile"
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("/usr/src/", "$(dir $(abspath $(lastword $(MAKEFILE_LIST))))../"))
    os.symlink(f"root/usr/src/{headers}", f"{folder}/build")
    os.symlink(f"root/lib/modules/{release}", f"{folder}/modules")
    with open(f"{folder}/release", "w", encoding="utf-8") as file:
        file.write(release + "\n")


def unpack_debug(source, folder):
    """A debug kernel that somebody built: @source has bzImage, config and build.tar.xz."""
    shutil.copy(f"{source}/bzImage", f"{folder}/bzImage")
    quiet(["tar", "-C", folder, "-xf", f"{source}/build.tar.xz"])
    os.makedirs(f"{folder}/modules")
    with open(f"{folder}/build/include/config/kernel.release", encoding="utf-8") as file:
        release = file.read()
    with open(f"{folder}/release", "w", encoding="utf-8") as file:
        file.write(release)


def build_debug(folder):
    """The kernel of debug.config from Debian's sources, with a tree to build modules in."""
    apt = Apt(f"{folder}/apt")
    print("fetching the sources of Linux 6.1 and building them: an hour of a processor", file=sys.stderr, flush=True)
    apt.download("linux-source-6.1")
    quiet(["dpkg-deb", "-x", glob.glob(f"{folder}/apt/*.deb")[0], f"{folder}/apt/root"])
    os.makedirs(f"{folder}/build")
    quiet(["tar", "-C", f"{folder}/build", "--strip-components=1", "-xf",
           glob.glob(f"{folder}/apt/root/usr/src/*.tar.xz")[0]])
    shutil.rmtree(f"{folder}/apt")
    shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "debug.config"), f"{folder}/build/.config")
    make = ["make", "-s", "-C", f"{folder}/build", f"-j{os.cpu_count()}"]
    quiet([*make, "olddefconfig"])
    quiet([*make, "bzImage", "modules"])
    shutil.copy(f"{folder}/build/arch/x86/boot/bzImage", f"{folder}/bzImage")
    os.makedirs(f"{folder}/modules")
    shutil.copy(f"{folder}/build/include/config/kernel.release", f"{folder}/release")


def unpack_checkpatch(folder):
    """checkpatch.pl and its lists, of the kernel's sources; no package has them alone."""
    apt = Apt(f"{folder}/apt")
    print(f"fetching checkpatch with Linux 6.1's sources from {MIRROR} (once)", file=sys.stderr, flush=True)
    apt.download("linux-source-6.1")
    quiet(["dpkg-deb", "-x", glob.glob(f"{folder}/apt/*.deb")[0], f"{folder}/apt/root"])
    names = ("checkpatch.pl", "spelling.txt", "const_structs.checkpatch")
    quiet(["tar", "-C", folder, "--strip-components=2", "--wildcards", "-xf",
           glob.glob(f"{folder}/apt/root/usr/src/*.tar.xz")[0], *(f"*/scripts/{name}" for name in names)])
    shutil.rmtree(f"{folder}/apt")
    with open(f"{folder}/release", "w", encoding="utf-8") as file:
        file.write("6.1\n")


def checkpatch():
    return os.path.join(ready("checkpatch", unpack_checkpatch), "checkpatch.pl")


def ready(name, fill):
    """CACHE/kernels/@name, filled by @fill when it is not there."""
    folder = os.path.join(cache_folder(), name)
    if not os.path.exists(f"{folder}/release"):
        os.makedirs(cache_folder(), exist_ok=True)
        part = tempfile.mkdtemp(prefix=f"{name}.", dir=cache_folder())
        try:
            os.chmod(part, 0o755)
            fill(part)
            os.rename(part, folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def find(name):
    """The folder of kernel @name: 6.1, 6.12 (fetched when they are not there) or debug; None without one."""
    if name in DEBIAN:
        return ready(name, lambda part: unpack_debian(name, part))
    own = os.path.join(cache_folder(), "debug-own")
    source = os.environ.get("DEBUG_KERNEL")
    if source:
        if not os.path.exists(f"{source}/bzImage"):
            sys.exit(f"DEBUG_KERNEL={source}: there is no bzImage in it: name a folder with bzImage and "
                     "build.tar.xz, or leave it out after `make debug-kernel`")
        return ready("debug-given", lambda part: unpack_debug(source, part))
    return own if os.path.exists(f"{own}/release") else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("fetch", "build", "forget"),
                        help="build: the debug kernel; forget: the next fetch takes the newest")
    parser.add_argument("kernels", nargs="+", choices=(*DEBIAN, "debug"))
    options = parser.parse_args()
    for name in options.kernels:
        if options.what == "forget":
            shutil.rmtree(os.path.join(cache_folder(), name if name in DEBIAN else "debug-own"), ignore_errors=True)
            continue
        folder = ready("debug-own", build_debug) if options.what == "build" else find(name)
        if not folder:
            sys.exit("there is no debug kernel: `make debug-kernel` builds one, DEBUG_KERNEL=FOLDER names one")
        print(folder)


if __name__ == "__main__":
    main()
