package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// Migrations returns the parts of the monitor's schema, in the order in which they are migrated.
func Migrations() []postgres.Migrations { return []postgres.Migrations{store.Migrations()} }

// Admin works on one chain. It is safe for concurrent use.
type Admin struct {
	ChainID uint64

	db    *pgxpool.Pool
	pause time.Duration // between the first two tries to read blocks
	part  uint64        // how many blocks a backfill reads and stores at a time
}

// UnknownChainError means that the database does not have one chain that is meant.
type UnknownChainError struct {
	ChainID uint64   // that was asked for; 0: the only one
	Known   []uint64 // that the database has
}

func (e *UnknownChainError) Error() string {
	known := strings.Trim(strings.ReplaceAll(fmt.Sprint(e.Known), " ", ", "), "[]")
	switch {
	case len(e.Known) == 0:
		return "the database has no chain of an escrow monitor"
	case e.ChainID == 0:
		return "the database has several chains: " + known
	}
	return fmt.Sprintf("the database has no chain %d: it has %s", e.ChainID, known)
}

// Open returns the Admin of a chain in a database, which it does not close. Chain 0 is the only one that the database has. It fails with a
// [postgres.OlderError], a [postgres.NewerError] or an [UnknownChainError].
func Open(ctx context.Context, db *pgxpool.Pool, chainID uint64) (*Admin, error) {
	for _, m := range Migrations() {
		if err := postgres.Check(ctx, db, m); err != nil {
			return nil, err
		}
	}
	rows, err := db.Query(ctx, `SELECT chain_id FROM escrow_chains ORDER BY chain_id`)
	if err != nil {
		return nil, fmt.Errorf("read the chains: %w", err)
	}
	known, err := pgx.CollectRows(rows, pgx.RowTo[uint64])
	if err != nil {
		return nil, fmt.Errorf("read the chains: %w", err)
	}
	if chainID == 0 && len(known) == 1 {
		chainID = known[0]
	}
	if slices.Contains(known, chainID) {
		return &Admin{ChainID: chainID, db: db, pause: firstPause, part: lateBlocks}, nil
	}
	return nil, &UnknownChainError{ChainID: chainID, Known: known}
}

// ErrEvents means that a set of events is not the chain's.
var ErrEvents = errors.New("the chain has another set of events")

// store returns the chain's store. set may be nil if no message is made.
func (a *Admin) store(set *events.Set, targets ...string) (*store.Store, error) {
	return store.New(a.db, store.Config{ChainID: a.ChainID, Events: set, Targets: targets})
}

// Chain returns the state of the chain.
func (a *Admin) Chain(ctx context.Context) (store.Chain, error) {
	s, err := a.store(nil)
	if err != nil {
		return store.Chain{}, err
	}
	return s.Chain(ctx)
}

// prefix precedes the names of the targets in the chain's lanes.
func (a *Admin) prefix() string { return store.Lane(a.ChainID, "") }
