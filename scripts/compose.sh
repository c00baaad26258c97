#!/usr/bin/env bash
# Runs deploy/compose.yaml with whichever Compose is there.
#
#   scripts/compose.sh up     build the images from bin, start everything, wait until it is healthy
#   scripts/compose.sh down   remove it, volumes included
#   scripts/compose.sh drill  the same in a project of its own, broken in every way we promise to survive
#   scripts/compose.sh exec, kill, logs, port, ps, start, stop …
#                             what Compose does with these words, in the project
set -euo pipefail
cd "$(dirname "$0")/.."
project=${COMPOSE_PROJECT_NAME:-rollcall}

main() {
  docker info >/dev/null 2>&1 || fail 'no Docker engine answers: install Docker and let this user use it'
  if docker compose version >/dev/null 2>&1; then
    compose=(docker compose) v2=true
  elif command -v docker-compose >/dev/null; then
    compose=(docker-compose) v2=false
  else
    fail 'Docker Compose is missing: install the package docker-compose-plugin or docker-compose'
  fi
  case ${1:-} in
    up)
      up
      in_project ps
      ;;
    down) in_project down --volumes --remove-orphans --timeout 20 ;;
    drill) drill ;;
    exec)
      shift
      if [ ! -t 0 ] || [ ! -t 1 ]; then set -- -T "$@"; fi # Compose wants a terminal otherwise
      in_project exec "$@"
      ;;
    kill | logs | port | ps | start | stop) in_project "$@" ;;
    *) fail 'up, down, drill, or exec, kill, logs, port, ps, start, stop?' ;;
  esac
}

fail() { printf 'compose: %s\n' "$*" >&2 && exit 1; }
in_project() { "${compose[@]}" -p "$project" -f deploy/compose.yaml "$@"; }

build() {
  mkdir -p build
  local image
  for image in rollcall rollcall-dev; do
    docker build --quiet -f deploy/Dockerfile --target $image -t $image:dev . >build/image.log 2>&1 ||
      { cat build/image.log && fail "the image $image could not be built"; }
  done
  printf 'compose: the image rollcall:dev has %s bytes\n' "$(docker image inspect --format '{{.Size}}' rollcall:dev)"
  REDIS_IMAGE=$(scripts/image.sh redis)
  POSTGRES_IMAGE=$(scripts/image.sh postgres)
  RELAYER_ADDRESSES=$(secrets)
  export REDIS_IMAGE POSTGRES_IMAGE RELAYER_ADDRESSES
}

# secrets makes what the containers are given as files, unless it is there, and prints the addresses of the keys. The
# containers' users may read the files, and no other user of this machine can.
secrets() {
  local folder=build/compose
  bin/rollcall-dev secrets "$folder" --api-urls http://api-1:8080,http://api-2:8080
  chmod 700 "$folder"
  [ -e $folder/postgres-password ] || od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >$folder/postgres-password
  echo "postgres://rollcall:$(cat $folder/postgres-password)@postgres:5432/rollcall?sslmode=disable" >$folder/database-url.new
  mv -f $folder/database-url.new $folder/database-url
  chmod 444 $folder/*
}

# check_ports ends the script where something else listens at a port that is to be published.
check_ports() {
  local variable port taken=0
  while read -r variable port; do
    port=${!variable-$port}
    if [ -z "$port" ] || ! listening "$port" || published "$port"; then
      continue
    fi
    printf 'compose: port %s is taken: choose another one with %s=PORT, or let Docker choose one with %s=\n' "$port" "$variable" "$variable" >&2
    taken=1
  done < <(sed -n 's/.*"127\.0\.0\.1:\${\([A-Z0-9_]*\)-\([0-9]*\)}:.*/\1 \2/p' deploy/compose.yaml)
  [ $taken -eq 0 ] || exit 1
}

listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
# published tells whether it is the project itself that has the port.
published() { [ -n "$(docker ps --quiet --filter "label=com.docker.compose.project=$project" --filter "publish=$1")" ]; }

up() {
  check_ports
  build
  # A chain that is started again is another one: the data of the one before means nothing on it.
  printf 'compose: the chain begins again at each start, and the relayers'"'"' data with it\n'
  in_project rm --force --stop -v oz-relayer-0 oz-relayer-1 oz-relayer-2 api-1 api-2 consumer-1 consumer-2 escrow-1 escrow-2 pubsub postgres chain >/dev/null 2>&1 || true
  # docker-compose 1.29 cannot replace containers on newer engines (KeyError: 'ContainerConfig'). It can start
  # new ones, and the volumes stay.
  in_project up --detach --remove-orphans || {
    $v2 && not_started
    in_project down --remove-orphans --timeout 20
    in_project up --detach --remove-orphans || not_started
  }
  await_healthy
}

not_started() {
  in_project logs --tail 20
  fail 'could not be started'
}

# await_healthy waits until Docker calls every container of the project healthy.
await_healthy() {
  local until=$((SECONDS + 120)) waiting
  while :; do
    waiting=$(in_project ps -q | xargs docker inspect --format '{{.Name}} {{.State.Status}} {{with .State.Health}}{{.Status}}{{end}}' | grep -v ' running healthy$' || true)
    [ -n "$waiting" ] || return 0
    if [ $SECONDS -ge $until ]; then
      in_project logs --tail 20
      fail "not healthy after two minutes:"$'\n'"$waiting"
    fi
    sleep 0.5
  done
}

# drill works in a project of its own, on ports that Docker picks, so that no other cluster is in its way. The
# containers' logs stay in build/drill.log. scripts/drill expects this project and these settings, which shorten its waits.
drill() {
  project=rollcall-drill
  export COORDINATOR_1_HTTP='' COORDINATOR_2_HTTP='' COORDINATOR_3_HTTP='' CONSUMER_RELAYER_TIMEOUT=10s
  export HEALTH_CHECK_INTERVAL_MS=2000 HEALTH_CHECK_TIMEOUT_MS=1500 HEALTH_CHECK_CONNECT_TIMEOUT_MS=1500
  export RELAYER_0_HTTP='' RELAYER_1_HTTP='' RELAYER_2_HTTP='' API_1_HTTP='' API_2_HTTP=''
  export ESCROW_1_HTTP='' ESCROW_2_HTTP='' PUBSUB='' ESCROW_INTERVAL=2s
  in_project down --volumes --remove-orphans --timeout 1 >/dev/null 2>&1 || true
  trap 'in_project logs --no-color --timestamps >build/drill.log 2>&1; in_project down --volumes --timeout 1 >/dev/null 2>&1' EXIT
  up
  go run ./scripts/drill
}

main "$@"
