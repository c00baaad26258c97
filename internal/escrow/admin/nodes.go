package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/watch"
	"github.com/rollcall-dev/rollcall/internal/evm"
)

// Nodes is how an operation reads the chain.
type Nodes struct {
	Client *evm.Client
	// Events is the chain's set of events.
	Events *events.Set
	// Alone reports that the client has a single endpoint, which no other one can confirm.
	Alone  bool
	Logger *slog.Logger // default: discard
}

// reader returns a reader of the chain for factories and the stored escrows.
func (a *Admin) reader(ctx context.Context, n Nodes, factories []common.Address) (*watch.Reader, error) {
	rows, err := a.db.Query(ctx, `SELECT escrow, created FROM escrow_accounts WHERE chain_id = $1 AND created IS NOT NULL`, int64(a.ChainID))
	if err != nil {
		return nil, fmt.Errorf("read the escrows: %w", err)
	}
	escrows := map[common.Address]uint64{}
	var escrow common.Address
	var created uint64
	_, err = pgx.ForEachRow(rows, []any{&escrow, &created}, func() error {
		escrows[escrow] = created
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the escrows: %w", err)
	}
	return watch.NewReader(watch.ReaderConfig{
		Client: n.Client, Events: n.Events, Factories: factories, Escrows: escrows, Alone: n.Alone, Logger: n.Logger,
	}), nil
}

const (
	// readTries is how many times a range is read while its endpoints do not settle it: they may limit the rate, or lag.
	readTries = 6
	// firstPause is the time between the first two tries; each further pause is twice as long.
	firstPause = 500 * time.Millisecond
)

// patiently calls read until it does not fail with [watch.ErrUnconfirmed], some times.
func (a *Admin) patiently(ctx context.Context, read func() error) error {
	for try, pause := 1, a.pause; ; try, pause = try+1, 2*pause {
		err := read()
		if err == nil || !errors.Is(err, watch.ErrUnconfirmed) || try == readTries {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}
