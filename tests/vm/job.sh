# SPDX-License-Identifier: Apache-2.0
# What /job of a virtual machine begins with: one function for each kind of step. Lines that begin
# with "@" are for check.py; "vm: " lines in the kernel's log tell what ran when it complained.
# shellcheck shell=sh

load() { # PARAMETERS...
	insmod /modules/fabricmgr.ko "$@" && chmod 0666 /dev/fabricmgr
}

# The last reference may go with a worker of the kernel, after the process.
unload() {
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		rmmod fabricmgr 2>/tmp/rmmod && return 0
		sleep 0.5
	done
	cat /tmp/rmmod
	return 1
}

# Memory that the kernel does not know whom it gave to: what a module takes and forgets is there.
# What each processor keeps for itself is free, too.
unknown_kib() {
	sync
	echo 3 >/proc/sys/vm/drop_caches
	awk '/^MemTotal:/ {sum += $2}
		/^(MemFree|Buffers|Cached|AnonPages|Slab|KernelStack|PageTables|Percpu|VmallocUsed):/ {sum -= $2}
		/^ +count:/ {sum -= 4 * $2}
		END {print sum}' /proc/meminfo /proc/zoneinfo
}

program() { # NAME LIMIT_S yes|no (loaded before) [ARGUMENTS...]
	name=$1 limit=$2 is_loaded=$3
	shift 3
	echo "vm: begin $name" >/dev/kmsg
	echo "@begin $name"
	status=0
	begun=$(cut -d' ' -f1 /proc/uptime)
	if [ "$is_loaded" = yes ] && ! load; then
		echo "the module does not load"
		status=96
	else
		timeout -s KILL "$limit" "/tests/$name" "$@" || status=$?
		if [ -e /sys/module/fabricmgr ] && ! unload; then
			echo "the module does not unload after $name: something of it is still in use"
			status=97
		fi
	fi
	echo "@end $name $status $begun $(cut -d' ' -f1 /proc/uptime)"
}

# Twice: an object counts as lost when two scans found no pointer to it. What planted.ko lost must be
# among them; it stays loaded, so that the report names it.
scan_for_leaks() {
	leaks=/sys/kernel/debug/kmemleak
	[ -e $leaks ] || return 0
	insmod /modules/planted.ko fault=leak
	sleep 6
	echo scan >$leaks
	echo scan >$leaks
	while read -r line; do
		echo "kmemleak: $line" >/dev/kmsg
	done <$leaks
	rmmod planted
}

planted() { # FAULT
	echo "vm: planted $1" >/dev/kmsg
	insmod /modules/planted.ko "fault=$1" && rmmod planted
	echo "vm: planted end" >/dev/kmsg
}

# The module with a planted fault: PROGRAM has to fail, or memory to be lost. It may stay loaded.
plant() { # FAULT PROGRAM [ARGUMENTS...]
	fault=$1 name=$2
	shift 2
	echo "vm: planted $fault-$name" >/dev/kmsg
	before=$(unknown_kib) status=0
	[ -e /sys/module/fabricmgr ] || insmod "/modules/plant-$fault.ko"
	timeout -s KILL 60 "/tests/$name" "$@" >/tmp/plant 2>&1 || status=$?
	unload >/dev/null || status=97
	lost=$(($(unknown_kib) - before))
	[ $lost -gt "$LOST_KIB_MAX" ] && status=98
	grep '^not ok' /tmp/plant | head -n 3
	echo "@plant $fault $name $status"
	echo "vm: planted end" >/dev/kmsg
}
