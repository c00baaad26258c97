#!/usr/bin/env bash
# Runs the commands that the pages show, so that they cannot rot: each line of every ```sh block, in the order
# of the page, from the top of the repository, against a cluster that `make dev` runs in the background.
#
#   make dev       starts that cluster, waits until it is up; it is stopped at the end of the page
#   … &            runs until the end of the page, too
#   make TARGET    other targets are long or have a step of their own: only that they exist is checked
#
# A command that fails is tried again for 30 s: the page may just have killed the leader.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
data=build/dev
dev=
background=()
failed=0

main() {
  local page line
  trap stop EXIT
  for page in "${@:-README.md}"; do
    rm -rf build/certs build/tls # what the page's commands make, and would not make again
    while IFS= read -r line; do
      run "$line" && continue
      printf 'FAIL  %s: %s\n' "$page" "$line"
      failed=1
      # Without the cluster nothing else can work.
      [[ $line != 'make dev'* ]] || break
    done < <(commands "$page")
    stop
  done
  exit $failed
}

# commands prints what stands in the sh blocks, a command a line, without empty lines and comments.
commands() {
  awk '/^ *```sh$/ { on = 1; next } /^ *```/ { on = 0 } on' "$1" |
    sed -e ':a' -e '/\\$/{N;s/\\\n *//;ba' -e '}' -e 's/^ *//' -e 's/^\$ //' -e '/^$/d' -e '/^#/d'
}

run() {
  local redis relayer port=3100
  # `make dev` says which port it took where 6390, or another, was not free.
  if [ -e $data/dev.json ]; then
    redis=$(sed -n 's/.*"redis_url": *"[^"]*:\([0-9]*\)".*/\1/p' $data/dev.json)
    set -- "${1//-p 6390/-p $redis}"
    set -- "${1//127.0.0.1:6390/127.0.0.1:$redis}"
    set -- "${1//127.0.0.1:8545/$(sed -n 's/.*"rpc_url": *"http:\/\/\([^"]*\)".*/\1/p' $data/dev.json)}"
    set -- "${1//127.0.0.1:7401/$(sed -n '/"gateways"/,/]/s/.*"http": *"http:\/\/\([^"]*\)".*/\1/p' $data/dev.json)}"
    local api=8080
    while IFS= read -r relayer; do
      set -- "${1//127.0.0.1:$api/$relayer}"
      api=$((api + 1))
    done < <(sed -n '/"apis"/,/]/s/.*"url": *"http:\/\/\([^"]*\)".*/\1/p' $data/dev.json)
    while IFS= read -r relayer; do
      set -- "${1//127.0.0.1:$port/$relayer}"
      port=$((port + 1))
    done < <(sed -n 's/.*"url": *"http:\/\/\([^"]*\)".*/\1/p' $data/dev.json)
  fi
  case $1 in
    'make dev'*) start_dev ;;
    *'&') start_background "${1%&}" ;;
    make*) make -n "$(awk '{ print $2 }' <<<"$1")" >/dev/null && echo "ok    $1 (exists)" ;;
    *) try "$1" ;;
  esac
}

try() {
  local until=$((SECONDS + 30))
  while ! timeout 60 bash -c "$1" >build/pages.log 2>&1 </dev/null; do
    [ $SECONDS -lt $until ] || { cat build/pages.log && return 1; }
    sleep 1
  done
  echo "ok    $1"
}

start_dev() {
  [ -z "$dev" ] || return 0
  mkdir -p build
  # Compiling everything again takes minutes, and is not what is waited for below.
  make build >build/pages-dev.log 2>&1 || { tail -n 40 build/pages-dev.log && return 1; }
  # In a process group of its own, so that stopping it reaches all it started, as Ctrl-C does.
  set -m
  make dev >build/pages-dev.log 2>&1 </dev/null &
  dev=$!
  set +m
  local until=$((SECONDS + 180))
  until [ -e $data/dev.json ] && up; do
    if [ $SECONDS -ge $until ] || ! kill -0 $dev; then
      tail -n 40 build/pages-dev.log
      return 1
    fi
    sleep 0.5
  done
  echo "ok    make dev"
}

# up says whether readers see all three relayers.
up() {
  local redis
  redis=$(sed -n 's/.*"redis_url": *"\([^"]*\)".*/\1/p' $data/dev.json)
  [ "$(redis-cli -u "$redis" scard relayer:active 2>/dev/null)" = 3 ]
}

start_background() {
  set -m
  bash -c "$1" >build/pages-background.log 2>&1 </dev/null &
  background+=($!)
  set +m
  echo "ok    $1 &"
}

stop() {
  local group
  for group in $dev "${background[@]}"; do
    # Not SIGINT: what was started in the background ignores that, and hands it down.
    kill -TERM -- "-$group" 2>/dev/null
    wait "$group"
  done
  dev='' background=()
}

main "$@"
