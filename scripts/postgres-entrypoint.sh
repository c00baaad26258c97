#!/bin/bash
# The entrypoint of the stand-in for PostgreSQL's image: makes the database that POSTGRES_USER, POSTGRES_DB and
# POSTGRES_PASSWORD_FILE ask for, unless there is one, and runs the server as the user postgres.
set -euo pipefail

if [ "$(id -u)" -eq 0 ]; then
  mkdir -p "$PGDATA" /run/postgresql
  chown postgres: "$PGDATA" /run/postgresql
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ ! -e "$PGDATA/PG_VERSION" ]; then
  initdb --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --auth=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8 \
    --pgdata="$PGDATA"
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  echo "CREATE DATABASE \"$POSTGRES_DB\"" | postgres --single -D "$PGDATA" postgres
fi
exec "$@" -c listen_addresses='*'
