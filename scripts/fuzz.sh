#!/usr/bin/env bash
# Runs every fuzz target for the given time each (30s); Go's fuzzer takes one target at a time. A target that tried fewer than 1,000
# inputs, as on a busy machine, goes on until it has, or fails: a check that tried nothing has found nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-30s}

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Go before 1.27 may report that the time is over as a failure of the target (go.dev/issue/75804). A target that failed so,
# without a failing input, runs a second time. So --- FAIL is printed after the last attempt only.
fuzz() { # package target time
  local attempt
  for attempt in 1 2; do
    # Left to itself Go spends a minute on making the first input of interest smaller, and the time is over.
    go test -tags hashicorpmetrics -run '^$' -fuzz "^$2\$" -fuzztime "$3" -fuzzminimizetime 20x "$1" 2>&1 | tee "$log" |
      sed -u 's/^--- FAIL: /ended: /' && return
    grep -qE '^ +context deadline exceeded$' "$log" && ! grep -q 'Failing input' "$log" && [ "$attempt" -eq 1 ] || return 1
    echo "$2 found nothing, and Go's fuzzer failed at the end of the time: a second time" >&2
  done
}

# tries prints how many inputs the last run tried.
tries() { grep -oP 'execs: \K\d+' "$log" | tail -n 1 | grep . || echo 0; }

mapfile -t targets < <(git grep --untracked -oP '^func \KFuzz\w+(?=\(\w+ \*testing\.F\))' -- '*_test.go' | sort)
[ ${#targets[@]} -gt 0 ] || { echo 'there is no fuzz target' >&2 && exit 1; }
for target in "${targets[@]}"; do
  package=./$(dirname "${target%%:*}")
  name=${target##*:}
  echo "== $name in $package for $time"
  fuzz "$package" "$name" "$time" || { echo "--- FAIL: $name in $package" >&2 && exit 1; }
  [ "$(tries)" -ge 1000 ] || fuzz "$package" "$name" 1000x || { echo "--- FAIL: $name in $package" >&2 && exit 1; }
  [ "$(tries)" -ge 1000 ] || { echo "$name tried only $(tries) inputs" >&2 && exit 1; }
done
echo "${#targets[@]} fuzz targets passed"
