#!/usr/bin/env bash
# Everything that can be said about the tree without running it. Goes on after a complaint, so that one run shows all.
# shellcheck disable=SC2317 # the functions are called by check
set -uo pipefail
cd "$(dirname "$0")/.." || exit
PATH=$PWD/build/tools:$PATH
failed=0

check() {
  local what=$1
  shift
  if "$@"; then
    printf 'ok    %s\n' "$what"
  else
    printf 'FAIL  %s\n' "$what"
    failed=1
  fi
}

# code goes through one Go module.
code() { (cd "$1" && golangci-lint run --allow-parallel-runners ./...); }

tidy() { (cd "$1" && go mod tidy -diff >/dev/null) || { echo "$1/go.mod or go.sum: go mod tidy" && return 1; }; }

# The revision that the contract must stay compatible with: the last release; before the first one, the branch that this one
# left, or else the commit before.
baseline() {
  git describe --tags --abbrev=0 2>/dev/null && return
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null)
  if [ -n "$base" ] && [ "$base" != "$(git rev-parse HEAD)" ]; then
    echo "$base"
  else
    git rev-parse --verify --quiet HEAD^
  fi
}

compatible() {
  local base
  base=$(baseline)
  if [ -z "$base" ] || ! git cat-file -e "$base:proto" 2>/dev/null; then
    echo 'there is nothing older to compare with'
    return
  fi
  buf breaking --against ".git#ref=$base"
}

sums() { (cd "$1" && find . -name '*.pb.go' -exec sha256sum {} + | sort -k 2); }

fresh() {
  rm -rf build/generated
  buf generate --output build/generated || return
  diff <(sums proto) <(sums build/generated/proto) || { echo 'generated code is stale: make generate' && return 1; }
}

# production names packages that the production binary must not link: a chain and the development cluster.
production() {
  local linked
  linked=$(go list -tags hashicorpmetrics -deps ./cmd/rollcall | grep -E '/go-ethereum/(eth|node|p2p|core/vm)$|/rollcall/internal/(dev|testutil)/')
  [ -z "$linked" ] || { printf '%s\n' "$linked" && return 1; }
}

check golangci-lint code .
check 'the production binary links no development code' production
check 'golangci-lint, the benchmark' code scripts/bench
check 'go.mod is tidy' tidy .
check 'go.mod is tidy, the benchmark' tidy scripts/bench
check 'buf lint' buf lint
check 'buf breaking' compatible
check 'generated code is fresh' fresh
check 'alert rules' promtool check rules --lint-fatal deploy/prometheus/*.rules.yml
check 'alert rules, tests' promtool test rules deploy/prometheus/*.test.yml
check 'plain words' scripts/words.sh
check shellcheck shellcheck scripts/*.sh .ci/run
exit $failed
