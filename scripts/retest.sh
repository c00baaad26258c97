#!/usr/bin/env bash
# Runs `make test`. Those tests that failed run a second time, alone: a test that fails twice is a fault, and fails the run. One that
# passes the second time is named as unsteady, because a machine that was busy for a moment must not reject a change. No busy machine
# causes a data race or a panic: these fail the run at once.
#
#   scripts/retest.sh [LOG]    the output of the tests is stored in LOG, too
set -uo pipefail
log=${1:-$(mktemp)}
again=$(mktemp)
trap 'rm -f "$again"' EXIT

# failures prints the failures in the output of go test, a line each: the package, and the test where one failed. A package that did
# not compile, panicked or ran out of time has a line without a test. One with a fault that no busy machine causes has a line FAULT.
failures() {
  awk '
    /^--- FAIL: / { tests[++n] = $3 }
    /^panic: / { whole = 1 }
    /^panic: / && !/^panic: test timed out/ { fault = 1 }
    /^fatal error: |^WARNING: DATA RACE/ { fault = 1 }
    /^ok  \t/ { n = whole = fault = 0 }
    /^FAIL\t/ {
      if (n == 0 || whole) print $2
      for (i = 1; i <= n; i++) print $2, tests[i]
      if (fault) print $2, "FAULT"
      n = whole = fault = 0
    }' "$1" | sort -u
}

# report prints a line for each name that is read, here and in the log.
report() {
  while IFS= read -r name; do [ -z "$name" ] || echo "$1: $name" | tee -a "$log"; done
}

make test 2>&1 | tee "$log" && exit
first=$(failures "$log")
faults=$(grep ' FAULT$' <<<"$first")
if [ -n "$faults" ]; then
  report 'race or panic' <<<"${faults// FAULT/}"
  exit 1
fi
packages=$(cut -d ' ' -f 1 <<<"$first" | sort -u | tr '\n' ' ')
packages=${packages% }
[ -n "$packages" ] || exit 1 # not the tests failed, but what make does before them
run=.
if ! grep -qv ' ' <<<"$first"; then
  run=$(cut -d ' ' -f 2 <<<"$first" | sort -u | tr '\n' '|')
  run="^(${run%|})"
fi

printf '\n=== again, alone: %s\n' "$first"
make test PACKAGES="$packages" RUN="$run" GO_TEST_FLAGS='-p 1 -parallel 1' 2>&1 | tee "$again"
status=$?
second=$(failures "$again")
grep -E '^(ok|FAIL)' "$again" >>"$log"
[ "$status" -eq 0 ] || [ -n "$second" ] || exit 1

# A package that failed as a whole, in either run, has no test to compare.
twice=$(awk 'NR == FNR { first[$0]; if (NF == 1) whole[$1]; next } $0 in first || $1 in whole || NF == 1 || $2 == "FAULT"' \
  <(printf '%s\n' "$first") <(printf '%s' "$second"))
printf '%s\n%s\n' "$first" "$second" | sort -u | grep -vxF -- "$twice" | report unsteady
[ -n "$twice" ] || exit 0
report 'failed twice' <<<"$twice"
exit 1
