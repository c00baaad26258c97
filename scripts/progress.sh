#!/usr/bin/env bash
# Runs a command that prints nothing for long, and prints how long it has taken, every so many seconds, until it ends.
#
#   scripts/progress.sh 10 'compiling bin/rollcall' go build ./...
set -uo pipefail
every=$1 what=$2
shift 2

# A sleep that outlived this script would keep a pipe that it prints into open.
ticker() {
  local start=$SECONDS pause=
  trap 'kill "$pause" 2>/dev/null; exit' TERM
  while :; do
    sleep "$every" &
    pause=$!
    wait "$pause"
    kill -0 $$ 2>/dev/null || exit # the script was killed
    printf '%s: %d s so far\n' "$what" $((SECONDS - start)) >&2
  done
}

ticker &
ticking=$!
trap 'kill "$ticking"; wait "$ticking" 2>/dev/null' EXIT # after Ctrl-C, too
"$@"
