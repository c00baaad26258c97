package store

import (
	"embed"
	"io/fs"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations are the migrations of the relay path's tables.
func Migrations() postgres.Migrations {
	sub, err := fs.Sub(files, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return postgres.Migrations{FS: sub, Table: "relay_migrations"}
}
