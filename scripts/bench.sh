#!/usr/bin/env bash
# Measures Rollcall and its peers: etcd, a bare net/http client, plain Postgres, a bare geth, and loops that read events. Prints a
# table and writes build/bench.json.
#
#   scripts/bench.sh                    everything, about an hour; leave the machine alone meanwhile
#   scripts/bench.sh --short            every section, small, in at most six minutes
#   scripts/bench.sh --only reads,...   some sections; --help lists them
#
# The benchmark is a Go module of its own, so that etcd stays out of the product's go.mod.
set -euo pipefail
cd "$(dirname "$0")/.."

[ "$(uname)" = Linux ] || { echo "bench: only Linux has what the measurements need (/proc, all of 127.0.0.0/8)" >&2; exit 1; }
[ -x bin/rollcall ] || make --no-print-directory build

(
  cd scripts/bench
  # Static, as the product is: with cgo, signing takes half the time.
  CGO_ENABLED=0 go build -trimpath -tags hashicorpmetrics -o ../../build/bench/bench .
  go build -trimpath -o ../../build/bench/etcd go.etcd.io/etcd/server/v3
)
# Ten thousand checked services are as many connections, on both ends.
ulimit -n "$(ulimit -H -n)"
exec build/bench/bench "$@"
