#!/usr/bin/env bash
# Prints the name of an image to run Redis from: REDIS_IMAGE, which the engine must have or be able to pull; or,
# where none is named, redis:7-alpine, or else a stand-in, built once from the distribution's redis-server.
set -euo pipefail
cd "$(dirname "$0")/.."
image=${REDIS_IMAGE:-redis:7-alpine}
standin=rollcall/redis-standin:7

main() {
  local reason
  if present "$image" || reason=$(docker pull --quiet "$image" 2>&1 >/dev/null); then
    echo "$image"
  elif [ -n "${REDIS_IMAGE:-}" ]; then
    echo "REDIS_IMAGE: $image is neither here nor to be pulled: $reason" >&2
    return 1
  else
    present "$standin" || build >&2
    echo "$standin"
  fi
}

present() { docker image inspect "$1" >/dev/null 2>&1; }

# build installs redis-server into a folder of its own and imports that as an image. The distribution and its
# release are this machine's, so that debootstrap knows its keys and mirrors.
build() {
  local sudo=() root packages=main
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  echo "$image is neither here nor to be pulled: building $standin"
  scripts/setup.sh standin
  # shellcheck source=/dev/null
  . /etc/os-release
  [ "$ID" != ubuntu ] || packages=main,universe
  root=$(mktemp -d)
  # shellcheck disable=SC2064 # expanded now: the names are local
  trap "${sudo[*]} rm -rf --one-file-system '$root'" EXIT
  "${sudo[@]}" debootstrap --variant=minbase --components="$packages" --include=redis-server \
    "$VERSION_CODENAME" "$root" >"$root.log" || { tail -n 20 "$root.log" && return 1; }
  rm -f "$root.log"
  "${sudo[@]}" tar -C "$root" -c --exclude=./proc --exclude=./sys --exclude=./dev --exclude=./var/cache --exclude=./var/lib/apt \
    --exclude=./usr/share/doc --exclude=./usr/share/locale --exclude=./usr/share/man . |
    docker import --change 'CMD ["redis-server", "--protected-mode", "no"]' --change 'EXPOSE 6379' - "$standin"
}

main
