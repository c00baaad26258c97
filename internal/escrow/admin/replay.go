package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rollcall-dev/rollcall/internal/escrow/store"
)

// Targets returns the names of the chain's targets, which the newest start of an instance has stored. It fails with [store.ErrNoTarget]. The
// outbox does not show them: published messages are deleted, and a replay may be for one target alone.
func (a *Admin) Targets(ctx context.Context) ([]string, error) {
	chain, err := a.Chain(ctx)
	if err == nil && len(chain.Targets) == 0 {
		err = store.ErrNoTarget
	}
	if err != nil {
		return nil, fmt.Errorf("read the targets of chain %d: %w", a.ChainID, err)
	}
	return chain.Targets, nil
}

// UnknownTargetError means that the chain has no target of a name: no process would take its messages.
type UnknownTargetError struct {
	Target string
	Known  []string
}

func (e *UnknownTargetError) Error() string {
	return fmt.Sprintf("the chain has no target %q: it has %s", e.Target, strings.Join(e.Known, ", "))
}

// chosen returns the given targets, or all of the chain's. It fails with [store.ErrNoTarget] or an [UnknownTargetError].
func (a *Admin) chosen(ctx context.Context, given []string) ([]string, error) {
	known, err := a.Targets(ctx)
	if err != nil || len(given) == 0 {
		return known, err
	}
	for _, target := range given {
		if !slices.Contains(known, target) {
			return nil, &UnknownTargetError{target, known}
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(given))), nil
}

// Replay is what a replay enqueues.
type Replay struct {
	From     uint64   `json:"from"`
	To       uint64   `json:"to"`
	Messages int      `json:"messages"` // for each target
	Escrows  int      `json:"escrows"`
	Targets  []string `json:"targets"`
}

// PlanReplay returns what [Admin.Replay] would enqueue for targets, or without any for all of the chain's. It fails with [store.ErrNoTarget] or an
// [UnknownTargetError].
func (a *Admin) PlanReplay(ctx context.Context, f Filter, targets []string) (r Replay, err error) {
	r = Replay{From: f.From, To: f.To}
	if r.Targets, err = a.chosen(ctx, targets); err != nil {
		return r, err
	}
	if err := a.db.QueryRow(ctx, `SELECT count(*), count(DISTINCT escrow) FROM processed_events WHERE `+where, f.args(a)...).Scan(&r.Messages, &r.Escrows); err != nil {
		return r, fmt.Errorf("count the events of chain %d: %w", a.ChainID, err)
	}
	return r, nil
}

// Replay enqueues the latest message of each matching event again, as store.Store.Replay does, in one transaction. It returns the number
// of messages for each target. A replay takes no sequence, so it may be for some of the targets. It fails as PlanReplay and that do.
func (a *Admin) Replay(ctx context.Context, f Filter, targets []string) (int, error) {
	targets, err := a.chosen(ctx, targets)
	if err != nil {
		return 0, err
	}
	s, err := a.store(nil, targets...)
	if err != nil {
		return 0, err
	}
	return s.Replay(ctx, f.From, f.To, f.Escrow)
}
