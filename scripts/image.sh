#!/usr/bin/env bash
# Prints the name of an image to run a server from, for `scripts/image.sh redis` or `scripts/image.sh postgres`: the one
# in REDIS_IMAGE or POSTGRES_IMAGE, which the engine must have or be able to pull; or, where none is named, the official
# one, or else a stand-in, built once from the distribution's packages.
set -euo pipefail
cd "$(dirname "$0")/.."

main() {
  local variable reason
  case ${1:-} in
    redis)
      variable=REDIS_IMAGE official=redis:7-alpine standin=rollcall/redis-standin:7 package=redis-server
      changes=('CMD ["redis-server", "--protected-mode", "no"]' 'EXPOSE 6379')
      ;;
    postgres)
      variable=POSTGRES_IMAGE official=postgres:15-alpine standin=rollcall/postgres-standin:1 package=postgresql
      changes=('ENTRYPOINT ["/entrypoint"]' 'CMD ["postgres"]' 'ENV PATH=/opt/postgresql/bin:/usr/sbin:/usr/bin:/sbin:/bin'
        'ENV PGDATA=/var/lib/postgresql/data' 'EXPOSE 5432')
      ;;
    *) echo 'image: redis or postgres?' >&2 && return 2 ;;
  esac
  image=${!variable:-$official}
  if present "$image" || reason=$(docker pull --quiet "$image" 2>&1 >/dev/null); then
    echo "$image"
  elif [ -n "${!variable:-}" ]; then
    echo "$variable: $image is neither here nor to be pulled: $reason" >&2
    return 1
  else
    present "$standin" || build >&2
    echo "$standin"
  fi
}

present() { docker image inspect "$1" >/dev/null 2>&1; }

# build installs the package into a folder of its own and imports that as an image. The distribution and its release are
# this machine's, so that debootstrap knows its keys and mirrors.
build() {
  local sudo=() root components=main change flags=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  echo "$image is neither here nor to be pulled: building $standin"
  scripts/setup.sh standin
  # shellcheck source=/dev/null
  . /etc/os-release
  [ "$ID" != ubuntu ] || components=main,universe
  root=$(mktemp -d)
  # shellcheck disable=SC2064 # expanded now: the names are local
  trap "${sudo[*]} rm -rf --one-file-system '$root'" EXIT
  # In two stages, with a policy in between that keeps packages from starting what they install.
  "${sudo[@]}" debootstrap --foreign --variant=minbase --components="$components" --include="$package" \
    "$VERSION_CODENAME" "$root" >"$root.log" || { tail -n 20 "$root.log" && return 1; }
  printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$root/usr/sbin/policy-rc.d" >/dev/null
  "${sudo[@]}" chmod 755 "$root/usr/sbin/policy-rc.d"
  "${sudo[@]}" chroot "$root" /debootstrap/debootstrap --second-stage >"$root.log" || { tail -n 20 "$root.log" && return 1; }
  rm -f "$root.log"
  [ "$package" != postgresql ] || furnish_postgres
  for change in "${changes[@]}"; do flags+=(--change "$change"); done
  "${sudo[@]}" tar -C "$root" -c --exclude=./proc --exclude=./sys --exclude=./dev --exclude=./var/cache --exclude=./var/lib/apt \
    --exclude=./usr/share/doc --exclude=./usr/share/locale --exclude=./usr/share/man . |
    docker import "${flags[@]}" - "$standin"
}

# furnish_postgres gives the stand-in what the official image has and the package has not: programs in PATH, and an
# entrypoint that makes a database. The cluster that the package made has no known password.
furnish_postgres() {
  local bin
  bin=$(cd "$root" && echo usr/lib/postgresql/*/bin)
  "${sudo[@]}" rm -rf "$root"/var/lib/postgresql/* "$root"/etc/postgresql/*
  "${sudo[@]}" mkdir -p "$root/opt/postgresql"
  "${sudo[@]}" ln -s "/$bin" "$root/opt/postgresql/bin"
  "${sudo[@]}" install -m 755 scripts/postgres-entrypoint.sh "$root/entrypoint"
}

main "$@"
