#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Debian packages in a fresh Debian 12 root with its own systemd (`make check-deb`).

Lintian first, without an error. Then a root from debootstrap (kept as a tarball in the cache) is booted by
systemd-nspawn and runs inside.sh: install, use, upgrade, remove, purge. At the end nothing may be left
but the users and what the test itself put there.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
LIMIT_S = 900
# Not of the packages: the users (their numbers must not be given to others), the test's own.
STAYS = re.compile(r"/(etc|usr/etc)/(passwd|group|shadow|gshadow|subuid|subgid)-?$|/srv/kv(/|$)|/etc/\.pwd\.lock$|"
                   r"/usr/lib/modules/[^/]+/modules\.|/var/lib/(systemd|dbus|pam|dkms)/|/root/|/etc/machine-id|/etc/systemd/system$|__pycache__")

UNIT = """[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /debs/inside.sh
StandardOutput=file:/out/log
StandardError=file:/out/log
ExecStopPost=/bin/systemctl poweroff --no-block
"""


def base(cache):
    """The tarball of a Debian 12 root, made once."""
    path = f"{cache}/debian-12-systemd-root.tar"
    if not os.path.exists(path):
        with tempfile.TemporaryDirectory(prefix="fabricmgr-debootstrap-") as folder:
            print(f"debootstrap of Debian 12 from {MIRROR} (once; kept as {path})", flush=True)
            with open(f"{folder}.log", "w", encoding="utf-8") as log:
                done = subprocess.run(["debootstrap", "--variant=minbase",
                                       "--include=systemd,systemd-sysv,dbus,ca-certificates", "bookworm",
                                       f"{folder}/root", MIRROR], stdout=log, stderr=log, check=False)
            if done.returncode:
                with open(f"{folder}.log", encoding="utf-8") as log:
                    sys.exit(f"debootstrap failed:\n{log.read()[-3000:]}")
            os.unlink(f"{folder}.log")
            os.makedirs(cache, exist_ok=True)
            subprocess.run(["tar", "-C", f"{folder}/root", "-cf", f"{path}.part", "."], check=True)
            os.rename(f"{path}.part", path)
    return path


def needs(packages):
    """What they depend on, without themselves."""
    found = set()
    for path in packages:
        line = subprocess.run(["dpkg-deb", "-f", path, "Depends"], text=True, capture_output=True, check=True).stdout
        # What the module is built for and with.
        if "dkms" in line:
            found |= {"linux-headers-amd64"}
        found |= {part.split("|")[0].split("(")[0].strip() for part in line.split(",")}
    return sorted(name for name in found if name and "fabricmgr" not in name)


def fill(root, folders):
    os.makedirs(f"{root}/debs")
    os.makedirs(f"{root}/out")
    shutil.copy(f"{HERE}/inside.sh", f"{root}/debs/inside.sh")
    sys.path.insert(0, f"{TOP}/tests/process")
    import tiny_gguf  # pylint: disable=import-outside-toplevel
    tiny_gguf.write(f"{root}/debs/tiny.gguf")
    for name, folder in folders.items():
        os.makedirs(f"{root}/debs/{name}")
        for path in glob.glob(f"{folder}/*.deb"):
            shutil.copy(path, f"{root}/debs/{name}/")
        with open(f"{root}/debs/{name}/version", "w", encoding="utf-8") as file:
            file.write(os.path.basename(os.path.normpath(folder)))
    with open(f"{root}/debs/needs", "w", encoding="utf-8") as file:
        file.write("\n".join(needs(glob.glob(f"{root}/debs/new/*.deb"))))
    with open(f"{root}/etc/systemd/system/check.service", "w", encoding="utf-8") as file:
        file.write(UNIT)
    wanted = f"{root}/etc/systemd/system/multi-user.target.wants/check.service"
    os.symlink("/etc/systemd/system/check.service", wanted)
    shutil.copy("/etc/resolv.conf", f"{root}/etc/resolv.conf")


def lint(folder):
    changes = glob.glob(f"{folder}/*.changes")
    out = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", *changes], text=True, capture_output=True,
                         check=False)
    print(out.stdout + out.stderr, end="")
    if not changes or out.returncode:
        sys.exit("lintian found errors")


def left(root):
    """Paths that were not there before the packages came."""
    lists = []
    for name in ("before", "after"):
        with open(f"{root}/out/{name}", encoding="utf-8") as file:
            lists.append(set(file.read().splitlines()))
    assert "/srv/kv/log" in lists[1] - lists[0], "the lists do not tell what was added"
    return sorted(path for path in lists[1] - lists[0] if not STAYS.search(path))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", help="folder of the older packages, named as their version")
    parser.add_argument("new", help="folder of the newer ones")
    parser.add_argument("--cache", required=True)
    options = parser.parse_args()
    lint(options.new)
    tarball = base(options.cache)
    root = tempfile.mkdtemp(prefix="fabricmgr-root-")
    try:
        subprocess.run(["tar", "-C", root, "-xf", tarball], check=True)
        fill(root, {"old": options.old, "new": options.new})
        boot = subprocess.run(["timeout", "-k", "10", str(LIMIT_S), "systemd-nspawn", "-q", "-D", root, "--register=no",
                               "--keep-unit", "--boot", "--console=pipe", "--resolv-conf=off"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        log = f"the root did not boot; systemd-nspawn said: {boot.stdout.decode(errors='replace')}\n"
        if os.path.exists(f"{root}/out/log"):
            with open(f"{root}/out/log", encoding="utf-8", errors="replace") as file:
                log = file.read()
        print(log, end="")
        if log.splitlines()[-1:] != ["done"]:
            sys.exit("check-deb: FAILED")
        if left(root):
            sys.exit("check-deb: FAILED: purge left\n  " + "\n  ".join(left(root)))
        print("check-deb: passed: purge left nothing but its users and what was not its own")
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", root], check=False)


if __name__ == "__main__":
    main()
