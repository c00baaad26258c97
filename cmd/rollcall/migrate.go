package main

import (
	"context"
	"fmt"
	"io"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// migrateCmd brings the database's schema up to date. Relayers do that themselves at their start, unless they are told not
// to: where they may not change the schema, or where it is to happen before they start.
type migrateCmd struct {
	DryRun bool `help:"Report pending migrations; change nothing."`
	cli.OutputFlags
	cli.DatabaseFlags
}

func (migrateCmd) Help() string {
	return `Any number of processes may do so at once: one migrates, under a lock, and the others wait for it, as long as --timeout.
That also bounds how long it takes to connect; the migration itself takes as long as it needs.
With --dry-run it changes nothing, and fails where there is something to do.`
}

func (c *migrateCmd) Check(p *config.Problems) { c.CheckFlags(p) }

// schema is a part of the database's schema, for scripts.
type schema struct {
	Table  string `json:"table"` // where its version is kept
	Was    int64  `json:"was"`
	Is     int64  `json:"is"`
	Newest int64  `json:"newest"` // that this program knows
}

func (c *migrateCmd) Run(ctx context.Context, con *cli.Console) error {
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	db, err := c.Open(limited)
	if err != nil {
		return err
	}
	defer db.Close()
	migrations := store.Migrations()
	migrations.Wait = c.Timeout
	s := schema{Table: migrations.Table}
	if s.Was, s.Newest, err = postgres.Versions(limited, db, migrations); err != nil {
		return err
	}
	if !c.DryRun {
		// Not limited as a whole: a table that is written again takes longer than anybody would wait for an answer.
		if err := postgres.Migrate(ctx, c.DatabaseURL, migrations); err != nil {
			return err
		}
	}
	limited, cancel = context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if err := postgres.Check(limited, db, migrations); err != nil {
		return cli.SchemaError(err)
	}
	s.Is = s.Newest
	return c.Print(con.Stdout, []schema{s}, func(w io.Writer) {
		if s.Was == s.Is {
			fmt.Fprintf(w, "%s is up to date, at version %d\n", s.Table, s.Is)
			return
		}
		fmt.Fprintf(w, "%s was at version %d and is at %d, the newest\n", s.Table, s.Was, s.Is)
	})
}
