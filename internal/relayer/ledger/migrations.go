package ledger

import "embed"

// Migrations are the steps that make the store's tables, for package postgres.
//
//go:embed migrations/*.sql
var Migrations embed.FS
