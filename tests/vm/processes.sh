#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The pool's process tests in a virtual machine: the host's file system, of which the machine sees a copy
# that it may write to (9p under an overlay), becomes the root of pytest. Their daemons find /dev/fabricmgr
# and keep their pools there. Arguments: python, the source's folder, pytest's. Prints TAP; check.py copies
# it into the archive.
python=$1 top=$2
shift 2

mkdir -p /host /upper /root2
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose host /host &&
	mount -t tmpfs none /upper && mkdir /upper/files /upper/work &&
	mount -t overlay -o lowerdir=/host,upperdir=/upper/files,workdir=/upper/work none /root2 || exit 1
for at in dev dev/shm dev/pts proc sys; do
	mount -o bind "/$at" "/root2/$at"
done
mount -t tmpfs none /root2/run
cd /root2 || exit 1
chroot /root2 /bin/sh -c 'cd "$0" && exec "$@"' "$top" \
	env -i HOME=/root PATH=/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 \
	"$python" -m pytest -v --tb=short -p no:cacheprovider "$@" >/upper/said 2>&1
status=$?
awk '/^[^ ]+::.* (PASSED|FAILED|ERROR|SKIPPED)/ {
	n++
	printf "%sok %d - %s%s\n", / (PASSED|SKIPPED)/ ? "" : "not ", n, $1, / SKIPPED/ ? " # SKIP" : ""
} END { printf "1..%d\n", n }' /upper/said
[ $status = 0 ] || cat /upper/said
cd / || exit 1
umount /root2/run /root2/dev/shm /root2/dev/pts /root2/dev /root2/proc /root2/sys /root2 /upper /host
exit $status
