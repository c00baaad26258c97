package cli

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	dispatchadmin "github.com/rollcall-dev/rollcall/internal/dispatch/admin"
	escrowadmin "github.com/rollcall-dev/rollcall/internal/escrow/admin"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer/admin"
)

// MigrateCmd brings the database's schema up to date. Relayers, APIs, consumers and escrow monitors do that themselves at their start, unless
// they are told not to: where they may not change the schema, or where it is to happen before they start.
type MigrateCmd struct {
	DryRun bool `help:"Report pending migrations; change nothing."`
	OutputFlags
	databaseFlags
}

// Help returns the details of the help.
func (MigrateCmd) Help() string {
	return `Any number of processes may do so at once: one migrates, under a lock, and the others wait for it, as long as --timeout.
That also bounds how long it takes to connect; the migration itself takes as long as it needs.
With --dry-run it changes nothing, and fails where there is something to do.`
}

// Check reports problems of the settings.
func (c *MigrateCmd) Check(p *config.Problems) { c.CheckFlags(p) }

// schemaVersion is the version of a part of the database's schema, for scripts.
type schemaVersion struct {
	Table  string `json:"table"` // where its version is kept
	Was    int64  `json:"was"`
	Is     int64  `json:"is"`
	Newest int64  `json:"newest"` // that this program knows
}

// Run runs the command.
func (c *MigrateCmd) Run(ctx context.Context, con *Console) error {
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	db, err := c.Open(limited)
	if err != nil {
		return err
	}
	defer db.Close()
	var all []schemaVersion
	// Relayers, the relay path and the escrow monitor may share a database. Tables that nothing uses cost nothing.
	for _, m := range slices.Concat(admin.Migrations(), dispatchadmin.Migrations(), escrowadmin.Migrations()) {
		s, err := c.migrate(ctx, db, m)
		if err != nil {
			for _, done := range all {
				err = fmt.Errorf("%w; %s is at version %d, the newest", err, done.Table, done.Is)
			}
			return err
		}
		all = append(all, s)
	}
	return c.Print(con.Stdout, all, func(w io.Writer) {
		for _, s := range all {
			if s.Was == s.Is {
				fmt.Fprintf(w, "%s is up to date, at version %d\n", s.Table, s.Is)
				continue
			}
			fmt.Fprintf(w, "%s was at version %d and is at %d, the newest\n", s.Table, s.Was, s.Is)
		}
	})
}

// migrate brings one part of the schema up to date, unless it only looks.
func (c *MigrateCmd) migrate(ctx context.Context, db *pgxpool.Pool, m postgres.Migrations) (s schemaVersion, err error) {
	m.Wait = c.Timeout
	s.Table = m.Table
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if s.Was, s.Newest, err = postgres.Versions(limited, db, m); err != nil {
		return s, err
	}
	if !c.DryRun {
		// Not limited as a whole: a table that is written again takes longer than anybody would wait for an answer.
		if err := postgres.Migrate(ctx, c.DatabaseURL, m); err != nil {
			return s, err
		}
	}
	limited, cancel = context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if err := postgres.Check(limited, db, m); err != nil {
		return s, schemaError(err)
	}
	s.Is = s.Newest
	return s, nil
}
