#!/usr/bin/env bash
# Installs the system packages Holdfast needs, and only those that are missing.
# A second run is a look-up of some milliseconds.
#
#   hack/setup.sh [run|test|bench]...     default: run
#
#   run    what `holdfast up` and `make build` need
#   test   run, and what the test suites need besides
#   bench  run, and Docker's engine for `holdfast bench --vs docker`
set -euo pipefail

# package       why
packages_run='
ca-certificates          the Go module proxy and package mirrors speak TLS
git                      the version stamp; Go asks it for revisions
make                     this build
mmdebstrap               bootstraps the base template from the package mirror of this machine
debian-archive-keyring   mmdebstrap verifies that mirror with it
'
packages_test='
gcc                      the race detector needs cgo
libc6-dev                likewise
busybox-static           the one program in the small template of the fault tests
e2fsprogs                a small file system that a test fills up
iproute2                 tests look at links and namespaces with a tool that is not ours
nftables                 likewise at firewall rules
'
packages_bench='
docker.io                the peer that the benchmark measures beside us
'

# The e2b SDK wants Node 20.18.1 or newer; Debian 12 has 18.
node_min=20.18.1
node_pin=22.23.5

here=$(cd "$(dirname "$0")/.." && pwd)
say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n1)" = "$2" ]; }

# install_missing PACKAGE...: one apt call for all that is not there yet.
install_missing() {
	local missing=()
	for p in "$@"; do installed "$p" || missing+=("$p"); done
	[ ${#missing[@]} -eq 0 ] && return
	command -v apt-get >/dev/null || die "this script knows apt only; install these by hand: ${missing[*]}"
	[ "$(id -u)" -eq 0 ] || die "packages are missing (${missing[*]}) and this is not root; run: sudo $0 ${groups[*]}"
	say "installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get -qq update </dev/null
	apt-get -qq -y --no-install-recommends install "${missing[@]}" </dev/null >/dev/null
}

# node_ready: Node for the SDK tests, from Debian when it is new enough, else
# the pinned one from the npm registry under bin/tools/node.
node_ready() {
	local bin="$here/bin/tools/node/bin/node" arch version
	if command -v node >/dev/null && command -v npm >/dev/null; then
		version=$(node --version)
		at_least "${version#v}" "$node_min" && return
	else
		install_missing nodejs npm
		version=$(node --version)
		at_least "${version#v}" "$node_min" && return
	fi
	[ -x "$bin" ] && [ "$("$bin" --version)" = "v$node_pin" ] && return
	case $(uname -m) in
	x86_64) arch=x64 ;;
	aarch64) arch=arm64 ;;
	*) die "no Node for $(uname -m) is known here; install Node $node_min or newer" ;;
	esac
	say "Node ${version:-} is older than $node_min; fetching $node_pin for the tests"
	rm -rf "$here/bin/tools/node"
	mkdir -p "$here/bin/tools/node"
	npm install --silent --no-audit --no-fund --no-save --prefix "$here/bin/tools/node" "node-linux-$arch@$node_pin" </dev/null >/dev/null
	ln -sfn "node_modules/node-linux-$arch/bin" "$here/bin/tools/node/bin"
	"$bin" --version >/dev/null || die "the fetched Node does not start: $bin"
}

names() { awk 'NF { print $1 }' <<<"$1"; }

groups=("$@")
[ ${#groups[@]} -gt 0 ] || groups=(run)
want=$(names "$packages_run")
node=
for g in "${groups[@]}"; do
	case $g in
	run) ;;
	test) want+=" $(names "$packages_test")" node=yes ;;
	bench) want+=" $(names "$packages_bench")" ;;
	*) die "unknown group \"$g\"; known: run, test, bench" ;;
	esac
done

# shellcheck disable=SC2086 # a list of names
install_missing $want
command -v go >/dev/null || die "go is not in PATH; install the version that go.mod names ($(awk '$1 == "go" { print $2 }' "$here/go.mod")) or newer"
[ -z "$node" ] || node_ready
