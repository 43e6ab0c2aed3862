#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs as a service of a booted Debian 12 root: installs, uses, upgrades, removes and purges the packages.
# Invariant: the last line is "done" exactly when every step held; /out has what check_deb.py compares.
set -eu
export DEBIAN_FRONTEND=noninteractive
step() { echo "== $*"; }
fail() { echo "FAIL: $*"; systemctl --no-pager -l status fabricmgrd || true; journalctl --no-pager -n 40 -u fabricmgrd || true; exit 1; }
# Paths of the root, without what apt, the journal and the kernel keep for themselves.
listing() { find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /out -o -path /debs \
	-o -path /var/cache -o -path /var/log -o -path /var/lib/apt -o -path /var/lib/dpkg \) -prune -o -print | sort; }
install() { apt-get install -y -q --no-install-recommends "$@" >/out/apt.log 2>&1 || { cat /out/apt.log; fail "apt-get install $*"; }; }
redis() { perl -MIO::Socket::UNIX -e 'my $s = IO::Socket::UNIX->new(Peer => "/run/fabricmgr/redis.sock") or die "redis: $!\n";
	print $s "*" . @ARGV . "\r\n", map { "\$" . length($_) . "\r\n$_\r\n" } @ARGV;
	my $line = <$s>; $line = <$s> if $line =~ /^\$\d/; print $line;' "$@"; }
value() { systemctl show -P "$1" fabricmgrd; }
# Blocks in memory: none came back from NVMe before somebody asked for it.
sealed() { fabricctl --json status | perl -ne 'print $1 if /"sealed": (\d+)/'; }
until_is() { for _ in $(seq 300); do [ "$(eval "$2")" = "$1" ] && return; sleep 0.1; done; fail "$2 is '$(eval "$2")', not '$1'"; }

step "before"
apt-get update -q >/out/apt.log 2>&1 || { cat /out/apt.log; fail "apt-get update"; }
# What they need, so that the listing tells of the packages alone.
install $(cat /debs/needs)
listing >/out/before

step "install $(cat /debs/old/version)"
install /debs/old/*.deb
until_is active 'value ActiveState'
fabricctl info
[ "$(fabricctl --json info | perl -ne 'print $1 if /"version": "(.*)"/')" = "$(cat /debs/old/version)" ] || fail "another version runs"
fabricctl --json info | grep -q '"loop": "io_uring"' || fail "the sandbox keeps it from io_uring"
value StatusText | grep -q "serving /run/fabricmgr/pool.sock" || fail "status: $(value StatusText)"
pid=$(value MainPID)
grep -q "^Seccomp:.2" "/proc/$pid/status" && grep -q "^NoNewPrivs:.1" "/proc/$pid/status" && grep -q "^CapEff:.0*$" "/proc/$pid/status" ||
	fail "it is not confined: $(cat "/proc/$pid/status")"
[ "$(stat -c %a:%U:%G /run/fabricmgr/pool.sock)" = 660:fabricmgr:fabricmgr ] || fail "$(ls -la /run/fabricmgr)"
runuser -u fabricmgr-engine -- fabricctl status >/dev/null || fail "a member of the group is kept out"
! runuser -u nobody -- fabricctl status 2>/dev/null || fail "a stranger is let in"
fabric-engine --version && fabric-sim --version && fabricmgrd --version
[ "$(systemctl is-enabled fabricmgr-router)" = disabled ] || fail "the router is enabled"

step "configure: NVMe elsewhere, Redis; a reload"
mkdir -p /srv/kv && chown fabricmgr: /srv/kv
mkdir -p /etc/systemd/system/fabricmgrd.service.d
printf '[Service]\nReadWritePaths=/srv/kv\nWatchdogSec=3\n' >/etc/systemd/system/fabricmgrd.service.d/local.conf
cat >>/etc/fabricmgr/fabricmgrd.conf <<'CONF'
# an administrator's line
[pool]
size = 64M
[nvme]
path = /srv/kv/log
size = 257M
[redis]
listen = unix:/run/fabricmgr/redis.sock
CONF
fabricmgrd --check >/dev/null || fail "--check"
systemctl daemon-reload
systemctl restart fabricmgrd || fail restart
redis SET key "a value that stays" | grep -q OK || fail SET
redis GET key | grep -q "a value that stays" || fail GET
systemctl reload fabricmgrd && until_is "the configuration was read again" 'value StatusText'

step "the pool outlives a restart and a kill: systemd keeps it"
[ "$(sealed)" = 1 ] || fail "$(sealed) blocks"
systemctl restart fabricmgrd && [ "$(sealed)" = 1 ] || fail "restarted: $(sealed) blocks; $(fabricctl info)"
fabricctl info | grep -i "kept\|keeps\|before" || true
kill -KILL "$(value MainPID)"
until_is 1 'value NRestarts'
until_is active 'value ActiveState'
[ "$(sealed)" = 1 ] || fail "killed: $(sealed) blocks; $(fabricctl info)"

step "the watchdog restarts a daemon that hangs"
until_is 1 'value StatusText | grep -c "of 64 MiB used"'
kill -STOP "$(value MainPID)"
until_is 2 'value NRestarts'
until_is active 'value ActiveState'
[ "$(sealed)" = 1 ] || fail "after the watchdog: $(sealed) blocks; $(fabricctl info)"
redis GET key | grep -q "a value that stays" || fail "GET after the watchdog"

step "an engine on it"
mkdir -p /var/lib/fabricmgr-engine && cp /debs/tiny.gguf /var/lib/fabricmgr-engine/model.gguf && chmod -R a+rX /var/lib/fabricmgr-engine
sed 's/^ROUTER_FLAGS=.*/ROUTER_FLAGS=--bypass-tokens 0/' /usr/share/doc/fabricmgr/examples/engine.env >/etc/fabricmgr/engine.env
systemctl start fabricmgr-worker@prefill fabricmgr-worker@decode fabricmgr-router || fail "engine units"
answer() { perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1:8080") or exit; my $b = q({"prompt":"x","max_tokens":3});
	print $s "POST /v1/completions HTTP/1.0\r\nX-Request-Id: deb-1\r\nContent-Length: " . length($b) . "\r\n\r\n$b"; print while <$s>;'; }
until_is 1 'answer | grep -c "200 OK"'
answer | grep -q 'X-Request-Id: deb-1' || fail "$(answer)"
answer | grep -q '"route":"disaggregated"' || { journalctl --no-pager -n 40 -u 'fabricmgr-*'; fail "$(answer)"; }
systemctl stop fabricmgr-router 'fabricmgr-worker@*'

step "the kernel module"
[ -n "$(ls /lib/modules)" ] || fail "there are no kernel headers to build for"
for kernel in $(ls /lib/modules); do
	[ -e "/lib/modules/$kernel/build" ] || continue
	dkms status fabricmgr -k "$kernel" | grep -q installed || dkms install "fabricmgr/$(cat /debs/old/version)" -k "$kernel" >/out/dkms.log 2>&1 ||
		{ cat /out/dkms.log; fail "dkms install for $kernel"; }
	modinfo -k "$kernel" -F parm fabricmgr | grep -q '^max_bytes:' || fail "modinfo: $(modinfo -k "$kernel" fabricmgr 2>&1)"
	built=$kernel
done
[ -n "${built:-}" ] || fail "dkms built the module for no kernel"
grep -q 'GROUP="fabricmgr", MODE="0660"' /lib/udev/rules.d/60-fabricmgr.rules || fail "the udev rule"

step "upgrade to $(cat /debs/new/version)"
install /debs/new/*.deb
until_is active 'value ActiveState'
[ "$(fabricctl --json info | perl -ne 'print $1 if /"version": "(.*)"/')" = "$(cat /debs/new/version)" ] || fail "the old version runs on"
grep -q "^# an administrator's line" /etc/fabricmgr/fabricmgrd.conf || fail "the edited file is gone"
[ "$(sealed)" != 0 ] || fail "after the upgrade: $(fabricctl info)"
dkms status fabricmgr | grep -q "/$(cat /debs/old/version)," && fail "dkms has the old version still: $(dkms status)"
dkms status fabricmgr -k "$built" | grep -q "/$(cat /debs/new/version),.*installed" || fail "dkms: $(dkms status)"
redis GET key | grep -q "a value that stays" || fail "GET after the upgrade"

step "remove"
apt-get remove -y -q fabricmgr libfabricmgr0 libfabricmgr-dev fabricmgr-doc fabricmgr-dkms >/out/apt.log 2>&1 || { cat /out/apt.log; fail remove; }
[ -z "$(dkms status fabricmgr)" ] || fail "dkms after the removal: $(dkms status)"
[ ! -e /usr/bin/fabricmgrd ] && ! pgrep -x fabricmgrd >/dev/null 2>&1 || fail "it is still there"
grep -q "^# an administrator's line" /etc/fabricmgr/fabricmgrd.conf || fail "remove took the configuration"

step "purge"
rm -r /etc/fabricmgr/engine.env /var/lib/fabricmgr-engine /etc/systemd/system/fabricmgrd.service.d
dpkg --purge fabricmgr >/out/apt.log 2>&1 || { cat /out/apt.log; fail purge; }
[ -s /srv/kv/log ] || fail "purge took a file that is not the package's"
listing >/out/after
echo "done"
