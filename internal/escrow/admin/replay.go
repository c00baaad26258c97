package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrNoTarget means that the outbox has no messages, so that it does not show which targets there are.
var ErrNoTarget = errors.New("the outbox has no messages that would show the targets")

// recent is how many of the newest messages show the targets: a step enqueues each of its messages for all of them.
const recent = 1000

// Targets returns the names of the targets of the newest messages. It fails with [ErrNoTarget].
func (a *Admin) Targets(ctx context.Context) ([]string, error) {
	rows, err := a.db.Query(ctx, `SELECT DISTINCT right(lane, -length($1)) AS target FROM (SELECT lane FROM escrow_outbox WHERE starts_with(lane, $1)
		ORDER BY created_at DESC, seq DESC LIMIT $2) AS newest ORDER BY target`, a.prefix(), recent)
	if err != nil {
		return nil, fmt.Errorf("read the targets of chain %d: %w", a.ChainID, err)
	}
	targets, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(targets) == 0 {
		err = ErrNoTarget
	}
	if err != nil {
		return nil, fmt.Errorf("read the targets of chain %d: %w", a.ChainID, err)
	}
	return targets, nil
}

// Replay is what a replay enqueues.
type Replay struct {
	From     uint64   `json:"from"`
	To       uint64   `json:"to"`
	Messages int      `json:"messages"` // for each target
	Escrows  int      `json:"escrows"`
	Targets  []string `json:"targets"`
}

// PlanReplay returns what [Admin.Replay] would enqueue for targets, or for those of the newest messages.
func (a *Admin) PlanReplay(ctx context.Context, f Filter, targets []string) (r Replay, err error) {
	r = Replay{From: f.From, To: f.To, Targets: targets}
	if len(targets) == 0 {
		if r.Targets, err = a.Targets(ctx); err != nil {
			return r, err
		}
	}
	if err := a.db.QueryRow(ctx, `SELECT count(*), count(DISTINCT escrow) FROM processed_events WHERE `+where, f.args(a)...).Scan(&r.Messages, &r.Escrows); err != nil {
		return r, fmt.Errorf("count the events of chain %d: %w", a.ChainID, err)
	}
	return r, nil
}

// Replay enqueues the latest message of each matching event again, as store.Store.Replay does, in one transaction. It returns the number
// of messages for each target.
func (a *Admin) Replay(ctx context.Context, f Filter, targets []string) (int, error) {
	s, err := a.store(nil, targets...)
	if err != nil {
		return 0, err
	}
	return s.Replay(ctx, f.From, f.To, f.Escrow)
}
