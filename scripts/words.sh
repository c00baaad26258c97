#!/usr/bin/env bash
# Rejects words and forms that the project does not use, in the tracked files of the current folder. Each complaint names the line.
#
#   scripts/words.sh
set -uo pipefail
failed=0

# reject prints the lines of the files that match a pattern, and why they are rejected.
reject() {
  local why=$1 pattern=$2 found
  shift 2
  found=$(git ls-files -z -- "$@" ':!:scripts/words.sh' ':!:scripts/words_test.go' ':!:*.pb.go' | xargs -0 --no-run-if-empty grep -nHP -e "$pattern")
  if [ -n "$found" ]; then
    printf '%s\n' "$found"
    printf 'words: %s\n' "$why"
    failed=1
  fi
}

start='(What|Who|Whoever|Whatever|Nobody|Somebody)\b'
reject 'a comment names the actor; no sentence begins with what, who or nobody' "(//|--)\\s+$start|//.*[.;:]\\s+$start" '*.go' '*.sql'
reject 'a comment names the actor; no sentence begins with what, who or nobody' "^\\s*#\\s+$start|^\\s*#.*[.;:]\\s+$start" '*.sh' '*.yml' '*.yaml' Makefile '.ci/*'
reject 'write again, another, cancellation' '(?i)\b(anew|once more|cancelations?|canceler)\b' '*.go' '*.sql' '*.sh' '*.yml' '*.yaml' '*.proto' '*.md' Makefile
reject 'a variable is named after its content, such as response or cause' '^[^/"`]*\b(said|heard|told)\b' '*.go'
reject 'the key of an error in a log line is err' '"error", ?err\b' '*.go'
reject 'a test is named after its subject: TestFunc_Condition' '^func Test(What|Who|Whoever|Nobody|Somebody|Nothing|That|Which|Those|Others)' '*_test.go'
# pgserver may run PostgreSQL as the system account nobody.
reject 'name the actor: a process, sender, caller or operator' '(?i)\b(nobody|somebody|whoever)\b' '*.go' '*.proto' '*.sql' '*.yml' ':!:internal/dev/pgserver'
reject 'a test name begins with its subject, without an article' '^func Test(A|An|The)[A-Z][a-z]' '*_test.go'
# Words with -ise in American English too: advertise, arise, compromise, exercise, noise, otherwise, precise, promise, raise, rise, surprise, wise.
american='(?<!dvert|Ar|[Rr]a|R|rom|xerc|[Nn]o|[Ww]|rec|urpr)'
reject 'a test name has American spelling, and names the actor' \
  "^func Test\\w*(Anew|Nobody|Somebody|Whoever|[Hh]onour|[Mm]isbehaviour|isation|${american}is(e[ds]?|ing)(?![a-z]))" '*_test.go'
exit $failed
