#!/usr/bin/env bash
# A private Docker engine for `holdfast bench --vs docker`, beside any other on
# the machine: own folders, own socket, own bridge.
#
#   hack/dockerd.sh start   starts it, prints the DOCKER_HOST to use
#   hack/dockerd.sh stop    stops it and removes everything it made
#
#   export DOCKER_HOST=$(hack/dockerd.sh start)
#   bin/holdfast bench --vs docker
#   hack/dockerd.sh stop
set -euo pipefail

root=${HOLDFAST_DOCKER_ROOT:-/var/tmp/holdfast-docker}
socket="unix://$root/docker.sock"
bridge=hfdocker0
subnet=10.254.77.1/24

say() { printf 'dockerd: %s\n' "$*" >&2; }

running() { [ -f "$root/pid" ] && kill -0 "$(cat "$root/pid")" 2>/dev/null; }

start() {
	[ "$(id -u)" -eq 0 ] || { say "needs root; run it by sudo"; exit 1; }
	command -v dockerd >/dev/null || { say "Docker's engine is not installed; run: hack/setup.sh bench"; exit 1; }
	if ! running; then
		mkdir -p "$root"
		ip link show "$bridge" >/dev/null 2>&1 || ip link add "$bridge" type bridge
		ip addr show dev "$bridge" | grep -q "$subnet" || ip addr add "$subnet" dev "$bridge"
		ip link set "$bridge" up
		# No packet filter rules: nothing is left of them afterwards, and a container
		# starts a little sooner, which is in Docker's favour.
		setsid dockerd --data-root "$root/data" --exec-root "$root/exec" --pidfile "$root/pid" --host "$socket" \
			--bridge "$bridge" --iptables=false --log-level warn >"$root/log" 2>&1 </dev/null &
		local child=$!
		for _ in $(seq 300); do
			DOCKER_HOST=$socket docker version >/dev/null 2>&1 && break
			kill -0 "$child" 2>/dev/null || { tail -n 5 "$root/log" >&2; say "it ended while starting"; exit 1; }
			sleep 0.1
		done
	fi
	DOCKER_HOST=$socket docker version >/dev/null || { tail -n 5 "$root/log" >&2; exit 1; }
	echo "$socket"
}

stop() {
	if running; then
		local pid
		pid=$(cat "$root/pid")
		local ids
		ids=$(DOCKER_HOST=$socket docker ps --all --quiet 2>/dev/null || true)
		# shellcheck disable=SC2086 # a list of ids
		[ -z "$ids" ] || DOCKER_HOST=$socket docker rm --force $ids >/dev/null
		kill "$pid"
		while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
	fi
	ip link delete "$bridge" 2>/dev/null || true
	# What it mounted below its root is unmounted before the root is removed.
	awk -v root="$root/" 'index($5, root) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r m; do umount "$m"; done
	rm -rf "$root"
}

case ${1:-} in
start) start ;;
stop) stop ;;
*)
	echo "usage: $0 start | stop" >&2
	exit 2
	;;
esac
