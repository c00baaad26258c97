package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/platform/lease"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the migrations of the monitor's tables.
func Migrations() postgres.Migrations {
	folder, err := fs.Sub(files, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return postgres.Migrations{FS: folder, Table: "escrow_migrations"}
}

// Outbox is the table of the messages. A lane is a target of a chain, see [Lane], and a subject is an escrow at a target: a message that a
// target refuses for good holds back those of its escrow. A claim reads whether the chain is halted, see [Halted]. A lane that begins with no
// chain id of Postgres's bigint has no chain: a cast of it would fail the claim.
var Outbox = outbox.Table{
	Name: "escrow_outbox", DeadBlocks: true, KeepDone: true,
	Columns: `coalesce(c.halted, '') <> ''`,
	Joins: `LEFT JOIN LATERAL (SELECT halted FROM escrow_chains WHERE chain_id =
		CASE WHEN split_part(e.lane, '/', 1) ~ '^[0-9]{1,19}$' AND lpad(split_part(e.lane, '/', 1), 19, '0') <= '9223372036854775807' COLLATE "C"
			THEN split_part(e.lane, '/', 1)::bigint END LIMIT 1) AS c ON true`,
	Scan: func(row pgx.CollectableRow) (any, error) {
		var halted bool
		return &halted, row.Scan(&halted)
	},
}

// Lane returns the lane of a target of a chain.
func Lane(chain uint64, target string) string { return strconv.FormatUint(chain, 10) + "/" + target }

// Halted reports whether the chain of a claimed message was halted when it was claimed.
func Halted(w outbox.Work) bool { return *w.Data.(*bool) }

var (
	// ErrFenced means that another process has stored a step, or has the lease: the caller reads the chain's state again.
	ErrFenced = errors.New("another process has moved the chain's cursor or taken its lease")
	// ErrHalted means that the chain contradicts a final block, and that an operator has to decide.
	ErrHalted = errors.New("the chain is halted")
	// ErrFinality means that a step contradicts a final block.
	ErrFinality = errors.New("a final block has changed")
)

// Config configures a Store. Fields without a default are required.
type Config struct {
	ChainID uint64 // below 2^63
	Events  *events.Set
	// Targets are the names of the targets that get the messages.
	Targets []string
	// Stored is called after each step with messages, and must not block. Default: nothing.
	Stored func()
}

// Store is the database of one chain. It is safe for concurrent use.
type Store struct {
	db  *pgxpool.Pool
	cfg Config
	box *outbox.Outbox

	registered atomic.Pointer[Settings] // by this process; nil before
}

// New returns a Store. It does not close db.
func New(db *pgxpool.Pool, cfg Config) (*Store, error) {
	box, err := outbox.New(db, Outbox)
	if err != nil {
		return nil, err
	}
	return &Store{db: db, cfg: cfg, box: box}, nil
}

// Settings are what each start of a chain must repeat.
type Settings struct {
	Factories  []common.Address
	StartBlock uint64
}

// SettingsError means that a start has other settings than the chain.
type SettingsError struct{ Setting, Stored, Given string }

func (e *SettingsError) Error() string {
	return fmt.Sprintf("%s is %s, and the database has %s from an earlier start: events of earlier blocks would be missing; give the stored value, or add what is new with \"rollcall escrow backfill\"", e.Setting, e.Given, e.Stored)
}

// Register stores the settings of a chain at its first start. Afterwards it does as [Store.Registered].
func (s *Store) Register(ctx context.Context, given Settings) error {
	_, err := s.db.Exec(ctx, `INSERT INTO escrow_chains (chain_id, factories, start_block, events, targets) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING`,
		int64(s.cfg.ChainID), given.raw(), int64(given.StartBlock), s.cfg.Events.String(), s.targets())
	if err != nil {
		return fmt.Errorf("register chain %d: %w", s.cfg.ChainID, err)
	}
	_, err = s.Registered(ctx, given)
	return err
}

// Registered reports whether the chain was registered before, and returns a *SettingsError for each setting that differs, joined. If none
// does, the targets of this process replace the stored ones.
func (s *Store) Registered(ctx context.Context, given Settings) (registered bool, err error) {
	var chain Chain
	err = s.scanChain(s.db.QueryRow(ctx, selectChain, int64(s.cfg.ChainID)), &chain)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the settings of chain %d: %w", s.cfg.ChainID, err)
	}
	if err := s.compare(chain, given); err != nil {
		return true, err
	}
	if targets := s.targets(); !slices.Equal(chain.Targets, targets) {
		if _, err := s.db.Exec(ctx, `UPDATE escrow_chains SET targets = $2 WHERE chain_id = $1`, int64(s.cfg.ChainID), targets); err != nil {
			return true, fmt.Errorf("store the targets of chain %d: %w", s.cfg.ChainID, err)
		}
	}
	s.registered.Store(&given)
	return true, nil
}

// targets returns the names of the targets of this process as they are stored.
func (s *Store) targets() []string {
	targets := append([]string{}, s.cfg.Targets...) // never nil, which would be stored as null
	slices.Sort(targets)
	return slices.Compact(targets)
}

// compare returns a *SettingsError for each setting of a chain that differs from the given ones, joined.
func (s *Store) compare(chain Chain, given Settings) error {
	var errs []error
	compare := func(setting, stored, given string) {
		if stored != given {
			errs = append(errs, &SettingsError{setting, stored, given})
		}
	}
	compare("FACTORY_ADDRESS", addresses(chain.raw()), addresses(given.raw()))
	compare("START_BLOCK", fmt.Sprint(chain.StartBlock), fmt.Sprint(given.StartBlock))
	compare("ESCROW_EVENTS", chain.Events, s.cfg.Events.String())
	return errors.Join(errs...)
}

// equal reports whether two settings are the same, in whatever order.
func (c Settings) equal(o Settings) bool {
	return c.StartBlock == o.StartBlock && slices.Equal(c.sorted(), o.sorted())
}

// sorted returns the factories as they are stored.
func (c Settings) sorted() []common.Address {
	return slices.Compact(slices.SortedFunc(slices.Values(c.Factories), common.Address.Cmp))
}

// raw returns the factories in the form of the database.
func (c Settings) raw() [][]byte {
	factories := c.sorted()
	raw := make([][]byte, len(factories))
	for i, f := range factories {
		raw[i] = f[:]
	}
	return raw
}

func addresses(list [][]byte) string {
	text := make([]string, len(list))
	for i, a := range list {
		text[i] = hexutil.Encode(a)
	}
	return strings.Join(text, ",")
}

// watcherLease is the lease in the row of a chain. The advisory lock is the documents' one.
var watcherLease = lease.Table{
	Name: "escrow_chains", Key: []string{"chain_id"}, Holder: "watcher", Until: "watcher_until", Epoch: "epoch", Advisory: 999999,
}

// WatcherLease returns the lease of the process that reads the chain. No process is elected before the chain is registered.
func (s *Store) WatcherLease() lease.Row { return watcherLease.Row(s.db, int64(s.cfg.ChainID)) }

// Chain is the state of a chain.
type Chain struct {
	Settings
	Events string // the set of events, in the form of package events
	// Targets are the names of the targets of messages, sorted, as the newest start had them.
	Targets []string
	// Cursor is the newest block whose events are stored. Its Parent is not stored. Zero before the first.
	Cursor events.Block
	// Final is the newest block that was final, with its number and hash. Zero before the first. It may be after the cursor.
	Final  events.Block
	Halted string // why; "" if it is not
	Epoch  int64
}

// Chain returns the state of the chain.
func (s *Store) Chain(ctx context.Context) (c Chain, err error) {
	err = s.scanChain(s.db.QueryRow(ctx, selectChain, int64(s.cfg.ChainID)), &c)
	if err != nil {
		return Chain{}, fmt.Errorf("read chain %d: %w", s.cfg.ChainID, err)
	}
	return c, nil
}

const selectChain = `SELECT factories, start_block, events, targets, cursor_number, cursor_hash, cursor_time, final_number, final_hash, halted, epoch
	FROM escrow_chains WHERE chain_id = $1`

func (s *Store) scanChain(row pgx.Row, c *Chain) error {
	var cursor, final *int64
	var cursorHash, finalHash *common.Hash
	var at *time.Time
	if err := row.Scan(&c.Factories, &c.StartBlock, &c.Events, &c.Targets, &cursor, &cursorHash, &at, &final, &finalHash, &c.Halted, &c.Epoch); err != nil {
		return err
	}
	if cursor != nil {
		c.Cursor = events.Block{Number: uint64(*cursor), Hash: *cursorHash, Time: *at}
	}
	if final != nil {
		c.Final = events.Block{Number: uint64(*final), Hash: *finalHash}
	}
	return nil
}

// Escrows returns the addresses of the escrows that are on the chain.
func (s *Store) Escrows(ctx context.Context) ([]common.Address, error) {
	rows, err := s.db.Query(ctx, `SELECT escrow FROM escrow_accounts WHERE chain_id = $1 AND created IS NOT NULL`, int64(s.cfg.ChainID))
	if err != nil {
		return nil, fmt.Errorf("read the escrows: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[common.Address])
	if err != nil {
		return nil, fmt.Errorf("read the escrows: %w", err)
	}
	return list, nil
}

// Blocks returns the stored blocks from a number on, in order.
func (s *Store) Blocks(ctx context.Context, from uint64) ([]events.Block, error) {
	rows, err := s.db.Query(ctx, `SELECT number, hash, parent, time FROM escrow_blocks WHERE chain_id = $1 AND number >= $2 ORDER BY number`,
		int64(s.cfg.ChainID), int64(from))
	if err != nil {
		return nil, fmt.Errorf("read the blocks: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[events.Block])
	if err != nil {
		return nil, fmt.Errorf("read the blocks: %w", err)
	}
	return list, nil
}

// Halt stops the chain: nothing is stored or published until an operator resumes it. It keeps the first reason.
func (s *Store) Halt(ctx context.Context, reason string) error {
	if _, err := s.db.Exec(ctx, `UPDATE escrow_chains SET halted = $2 WHERE chain_id = $1 AND halted = ''`, int64(s.cfg.ChainID), reason); err != nil {
		return fmt.Errorf("halt chain %d: %w", s.cfg.ChainID, err)
	}
	return nil
}
