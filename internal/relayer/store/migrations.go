package store

import (
	"embed"
	"io/fs"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the migrations that create the store's tables.
func Migrations() postgres.Migrations {
	folder, err := fs.Sub(files, "migrations")
	if err != nil {
		panic(err) // the folder is embedded
	}
	return postgres.Migrations{FS: folder, Table: "relayer_migrations"}
}
