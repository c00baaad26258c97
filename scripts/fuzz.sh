#!/usr/bin/env bash
# Runs every fuzz target for the given time each (30s); Go's fuzzer takes one target at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-30s}

mapfile -t targets < <(git grep --untracked -oP '^func \KFuzz\w+(?=\(\w+ \*testing\.F\))' -- '*_test.go' | sort)
[ ${#targets[@]} -gt 0 ] || { echo 'there is no fuzz target' >&2 && exit 1; }
for target in "${targets[@]}"; do
  package=./$(dirname "${target%%:*}")
  name=${target##*:}
  echo "== $name in $package for $time"
  go test -tags hashicorpmetrics -run '^$' -fuzz "^$name\$" -fuzztime "$time" "$package"
done
echo "${#targets[@]} fuzz targets passed"
