#!/usr/bin/env bash
# Finds what a run left behind on this machine.
#
#   hack/leaks.sh take >FILE     what is there now
#   hack/leaks.sh compare FILE   exit 1 and list what is there now and was not in FILE
#
# Looked at: processes started from this clone or from an unpacked runtime, mounts,
# network namespaces, links, nftables tables, control groups.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)

processes() {
	local dir exe
	for dir in /proc/[0-9]*; do
		exe=$(readlink "$dir/exe" 2>/dev/null) || continue
		case $exe in
		"$here"/* | */runtimes/*/runsc* | */runtimes/*/guest*) echo "process ${dir#/proc/} ${exe}" ;;
		esac
	done
}

take() {
	processes
	# Mount numbers change without a meaning; source, place and type do not.
	awk '{ for (i = 7; i <= NF; i++) if ($i == "-") { print "mount", $5, $(i+1); break } }' /proc/self/mountinfo
	ip -o link show 2>/dev/null | awk -F': ' '{ sub(/@.*/, "", $2); print "link", $2 }'
	if command -v nft >/dev/null; then nft list tables 2>/dev/null | sed 's/^/nftables /'; fi
	find /sys/fs/cgroup -xdev -type d -name '*holdfast*' -printf 'cgroup %p\n' 2>/dev/null || true
	for mount in /sys/fs/cgroup/*/; do
		find "$mount" -xdev -mindepth 1 -type d -path '*holdfast*' -printf 'cgroup %p\n' 2>/dev/null || true
	done
}

case ${1:-} in
take) take | sort -u ;;
compare)
	# What ends a moment after the tests do is given a moment.
	for try in 1 2 3 4 5; do
		left=$(comm -13 "$2" <(take | sort -u))
		[ -n "$left" ] || exit 0
		[ "$try" = 5 ] || sleep 1
	done
	printf 'left behind:\n%s\n' "$left"
	exit 1
	;;
*)
	echo "usage: $0 take | compare FILE" >&2
	exit 2
	;;
esac
