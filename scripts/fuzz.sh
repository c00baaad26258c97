#!/usr/bin/env bash
# Runs every fuzz target for the given time each (30s); Go's fuzzer takes one target at a time. A target that hardly ran
# fails: a check that tried nothing has found nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-30s}

log=$(mktemp)
trap 'rm -f "$log"' EXIT

mapfile -t targets < <(git grep --untracked -oP '^func \KFuzz\w+(?=\(\w+ \*testing\.F\))' -- '*_test.go' | sort)
[ ${#targets[@]} -gt 0 ] || { echo 'there is no fuzz target' >&2 && exit 1; }
for target in "${targets[@]}"; do
  package=./$(dirname "${target%%:*}")
  name=${target##*:}
  echo "== $name in $package for $time"
  # Left to itself Go spends a minute on making the first input of interest smaller, and the time is over.
  go test -tags hashicorpmetrics -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 20x "$package" | tee "$log"
  tries=$(grep -oP 'execs: \K\d+' "$log" | tail -n 1)
  [ "${tries:-0}" -ge 1000 ] || { echo "$name tried only ${tries:-0} inputs in $time" >&2 && exit 1; }
done
echo "${#targets[@]} fuzz targets passed"
