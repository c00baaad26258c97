#!/usr/bin/env bash
# Installs what is missing for one purpose, and nothing else, and lists it before. Safe to run any number of times.
#
#   scripts/setup.sh build    Go, which everything needs
#   scripts/setup.sh run      … and what `make dev` does
#   scripts/setup.sh test     … and `make test`, `make fuzz`, `make bench`: geth is built into build/tools
#   scripts/setup.sh lint     … and `make lint`, `make generate`: tools built into build/tools
#   scripts/setup.sh standin  … and what builds the stand-ins for images of Redis and PostgreSQL
#
# Debian and Ubuntu: through apt, as root or with sudo. Elsewhere it says what to install.
# Any Go fetches the one that go.mod asks for, through the module proxy, into the module cache.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/build/go/bin:$PATH

buf=github.com/bufbuild/buf/cmd/buf@v1.55.1
golangci_lint=github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
geth=github.com/ethereum/go-ethereum/cmd/geth@v1.17.10
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.1.4

listing=false missing=() # while listing is true, what is missing is noted there and not installed

main() {
  local mode=${1:-test}
  listing=true
  requirements "$mode"
  listing=false
  if [ ${#missing[@]} -gt 0 ]; then
    say "missing here, and installed now:"
    printf '  %s\n' "${missing[@]}" >&2
  fi
  requirements "$mode"
}

requirements() {
  local mode=$1
  need_go
  case $mode in
    build) ;;
    # make and git may have been called already, but this script also prepares a machine for them.
    # curl and redis-cli are for trying out what runs. The cluster has a Redis and a PostgreSQL of its own.
    run) need make:make curl:curl redis-server:redis-server redis-cli:redis-tools postgres:postgresql ;;
    # gcc and libc's headers: the race detector. ip: tests that cut hosts off one another. zsh, fish: completion.
    # node runs fauxqs, the SQS server of the tests.
    test)
      need make:make git:git gcc:gcc /usr/include/stdlib.h:libc6-dev redis-server:redis-server \
        redis-cli:redis-tools postgres:postgresql rabbitmq-server:rabbitmq-server node:nodejs ip:iproute2 zsh:zsh fish:fish
      need_tool "$geth"
      ;;
    lint)
      # promtool comes with the server; nothing starts that.
      need make:make git:git shellcheck:shellcheck promtool:prometheus
      need_tool "$buf"
      need_tool "$golangci_lint"
      need_tool "$govulncheck"
      ;;
    standin) need debootstrap:debootstrap ;;
    *) fail "unknown purpose '$mode': build, run, test, lint or standin" ;;
  esac
}

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*" && exit 1; }

# need_go finds a Go that builds this, or brings one.
need_go() {
  local want
  want=$(sed -n 's/^go //p' go.mod)
  if $listing; then
    command -v go >/dev/null || missing+=("Go $want, through apt-get or the module proxy")
    return
  fi
  go_builds "$want" && return
  if ! command -v go >/dev/null; then
    command -v apt-get >/dev/null || fail "Go is missing: install Go $want or newer and put it into PATH"
    # Without certificates Go trusts no proxy.
    apt_install golang-go ca-certificates
    go_builds "$want" && return
  fi
  fetch_go "$want"
  go_builds "$want" || fail "Go $want is needed and could not be fetched: install it, or a newer one, and put it into PATH"
}

# go_builds compares the Go at hand with the one asked for. From 1.21 on Go fetches that by itself, and then is it.
go_builds() {
  local have
  command -v go >/dev/null && have=$(go env GOVERSION) && have=${have#go} && have=${have%%[ -]*} || return
  [ "$(printf '%s\n' "${1%.0}" "$have" | sort -V | head -n 1)" = "${1%.0}" ]
}

# fetch_go gets what newer ones fetch by themselves with an older Go, which does not know that modules may hold a
# toolchain, but checks them against Go's checksum database all the same. It stays in the module cache, and a link to it
# in build/go, where the Makefile looks first.
fetch_go() {
  local module answer folder
  # Outside of this module, whose go.mod it may not understand, or fetch a Go for.
  module=golang.org/toolchain@v0.0.1-go$1.$(cd / && go env GOOS)-$(cd / && go env GOARCH)
  say "fetching Go $1"
  if ! answer=$(cd / && GOFLAGS='' GO111MODULE=on go mod download -json "$module"); then
    printf '%s\n' "$answer" | sed -n 's/^[[:space:]]*"Error": "\(.*\)",*$/\1/p' >&2 # what is wrong stands in the answer
    return
  fi
  folder=$(printf '%s\n' "$answer" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p')
  chmod -R +x "$folder/bin" "$folder/pkg/tool" # modules have no modes
  mkdir -p build
  ln -sfn "$folder" build/go
  hash -r
}

# need takes pairs of what has to be there (a command, or a file by its full name) and the package that brings it.
need() {
  local pair thing packages=()
  for pair in "$@"; do
    thing=${pair%%:*}
    case $thing in
      postgres) has_postgres ;;
      /*) [ "$(uname)" != Linux ] || [ -e "$thing" ] ;;
      # Programs of administrators are not in every user's PATH.
      *) PATH=$PATH:/usr/sbin:/sbin command -v "$thing" >/dev/null ;;
    esac || packages+=("${pair##*:}")
  done
  [ ${#packages[@]} -eq 0 ] && return
  if $listing; then
    missing+=("packages: ${packages[*]}")
    return
  fi
  if [ "$(uname)" = Darwin ]; then
    need_brew "${packages[@]}"
    return
  fi
  command -v apt-get >/dev/null || fail "please install: ${packages[*]} (names of Debian's packages)"
  apt_install "${packages[@]}"
}

# has_postgres also looks where packages keep the server, which is out of PATH.
has_postgres() {
  local program
  command -v postgres >/dev/null && return
  for program in /usr/lib/postgresql/*/bin/postgres /usr/pgsql-*/bin/postgres \
    /opt/homebrew/opt/postgresql*/bin/postgres /usr/local/opt/postgresql*/bin/postgres; do
    [ -x "$program" ] && return
  done
  return 1
}

# need_brew names the Homebrew twins of Debian's packages. The tests that need Linux's network namespaces
# are built on Linux only, so nothing stands in for iproute2.
need_brew() {
  local package formulas=()
  for package in "$@"; do
    case $package in
      redis-server | redis-tools) formulas+=(redis) ;;
      rabbitmq-server) formulas+=(rabbitmq) ;;
      nodejs) formulas+=(node) ;;
      postgresql) formulas+=(postgresql@17) ;;
      gcc) fail "please install Apple's command line tools: xcode-select --install" ;;
      iproute2) ;;
      debootstrap) fail "stand-ins for images are built on Debian and Ubuntu only: docker pull redis:7-alpine postgres:15-alpine" ;;
      *) formulas+=("$package") ;;
    esac
  done
  [ ${#formulas[@]} -eq 0 ] || fail "please install: brew install $(printf '%s\n' "${formulas[@]}" | sort -u | tr '\n' ' ')"
}

apt_install() {
  local conf service sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "please install as root: apt-get install $*"
    sudo=(sudo)
  fi
  say "installing $*"
  hold_services
  "${sudo[@]}" apt-get update -qq || say "apt-get update failed, trying with the lists at hand"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2 ||
    fail "apt-get could not install $*"
  # Nor at the next boot. Only what was installed just now is touched.
  for service in redis-server rabbitmq-server prometheus; do
    if [[ " $* " == *" $service "* ]] && [ -d /run/systemd/system ]; then
      "${sudo[@]}" systemctl disable --quiet "$service" || true
    fi
  done
  if [[ " $* " == *" postgresql "* ]]; then
    for conf in /etc/postgresql/*/main/start.conf; do
      [ ! -e "$conf" ] || "${sudo[@]}" sed -i 's/^auto$/manual/' "$conf"
    done
  fi
}

# hold_services keeps Debian's packages from starting what they install: a redis-server on port 6379, a PostgreSQL on
# port 5432, a RabbitMQ on port 5672 and a Prometheus on port 9090 that were not requested. An existing policy is left as it is.
hold_services() {
  local policy=/usr/sbin/policy-rc.d
  [ -e "$policy" ] && return
  printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$policy" >/dev/null
  # shellcheck disable=SC2064 # expanded now: sudo is gone when the trap runs
  trap "${sudo[*]} rm -f $policy" EXIT
  "${sudo[@]}" chmod 755 "$policy"
}

# need_tool builds a Go program at its pinned version into build/tools, unless it is there at that version.
need_tool() {
  local name=${1##*/} version=${1##*@}
  name=${name%@*}
  if [ -x "build/tools/$name" ] && go version -m "build/tools/$name" | awk '$1 == "mod" { print $3 }' | grep -qxF "$version"; then
    return
  fi
  if $listing; then
    missing+=("$name $version, compiled into build/tools: a minute or two")
    return
  fi
  say "building $name $version"
  GOBIN=$PWD/build/tools scripts/progress.sh 10 "setup: building $name" go install "$1" || fail "could not build $name $version"
}

main "$@"
