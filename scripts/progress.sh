#!/usr/bin/env bash
# Runs a command that prints nothing for long, and prints how long it has taken, every so many seconds, until it ends.
#
#   scripts/progress.sh 10 'compiling bin/rollcall' go build ./...
set -uo pipefail
every=$1 what=$2
shift 2

# A sleep that outlives this script must not keep a pipe open that the script prints into. The signal may come before the shell has
# noted the process id of a sleep, so the trap asks for the jobs.
ticker() {
  local start=$SECONDS
  trap 'kill $(jobs -p) 2>/dev/null; exit' TERM
  while :; do
    sleep "$every" >/dev/null 2>&1 &
    wait $!
    kill -0 $$ 2>/dev/null || exit # the script was killed
    printf '%s: %d s so far\n' "$what" $((SECONDS - start)) >&2
  done
}

ticker &
ticking=$!
trap 'kill "$ticking"; wait "$ticking" 2>/dev/null' EXIT # after Ctrl-C, too
"$@"
