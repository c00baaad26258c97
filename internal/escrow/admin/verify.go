package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/escrow/watch"
)

const (
	// MaxVerify is how many blocks one Verify reads at most.
	MaxVerify = 1_000_000
	// verifyBlocks is how many blocks are compared at a time.
	verifyBlocks = 2_000
	// maxShown is how many differences a Verified lists; all are counted.
	maxShown = 100
)

// ErrRange means that a range of blocks cannot be compared.
var ErrRange = errors.New("these blocks cannot be compared")

// Verified is the result of a comparison of the chain with the messages.
type Verified struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
	// Events counts the chain's events, as the endpoints confirm them.
	Events int `json:"events"`
	Comparison
	// Differences lists the first of the missing and false events.
	Differences []Difference `json:"differences"`
	Endpoints   []Endpoint   `json:"endpoints"`
}

// Comparison counts the differences between a list of events and the messages.
type Comparison struct {
	Missing int `json:"missing"` // events that no message has
	False   int `json:"false"`   // messages of events that the chain does not have like that
}

// Endpoint is the comparison of the answers of one endpoint alone.
type Endpoint struct {
	Endpoint string `json:"endpoint"`
	Events   int    `json:"events"`
	Comparison
	Error string `json:"error"` // why the numbers lack a part of the blocks; "" if they do not
}

// Difference is an event that the chain has and no message, or the reverse.
type Difference struct {
	Kind        string         `json:"kind"` // missing or false
	EventID     string         `json:"eventId"`
	Type        string         `json:"type"`
	Escrow      common.Address `json:"escrow"`
	BlockNumber uint64         `json:"blockNumber"`
	BlockHash   common.Hash    `json:"blockHash"`
}

// Equal reports whether the messages are the chain's events.
func (v *Verified) Equal() bool { return v.Missing == 0 && v.False == 0 }

// Verify reads blocks again from all endpoints, confirms what they have, and compares it with the messages that were not retracted, whether
// they are published or still wait. It calls progress after each part with the last block that was compared. It fails with [ErrRange], with
// [ErrEvents], or with [watch.ErrUnconfirmed] if the endpoints do not settle a block.
func (a *Admin) Verify(ctx context.Context, n Nodes, from, to uint64, progress func(uint64)) (*Verified, error) {
	chain, err := a.Chain(ctx)
	if err != nil {
		return nil, err
	}
	if n.Events.String() != chain.Events {
		return nil, ErrEvents
	}
	last := min(chain.Cursor.Number, chain.Final.Number)
	switch {
	case last < chain.StartBlock || last == 0:
		return nil, fmt.Errorf("%w: no final block has been read", ErrRange)
	case from < chain.StartBlock || to > last || to < from:
		return nil, fmt.Errorf("%w: blocks %d to %d have been read and are final", ErrRange, chain.StartBlock, last)
	case to-from >= MaxVerify:
		return nil, fmt.Errorf("%w: they are more than %d", ErrRange, MaxVerify)
	}
	r, err := a.reader(ctx, n, chain.Factories)
	if err != nil {
		return nil, err
	}
	v := &Verified{From: from, To: to, Differences: []Difference{}, Endpoints: []Endpoint{}}
	for at := from; at <= to; at += verifyBlocks {
		end := min(at+verifyBlocks-1, to)
		if err := a.patiently(ctx, func() error { return a.verify(ctx, r, v, at, end) }); err != nil {
			return nil, fmt.Errorf("compare blocks %d to %d: %w", at, end, err)
		}
		progress(end)
	}
	return v, nil
}

// verify adds the comparison of some blocks. After an error nothing was added.
func (a *Admin) verify(ctx context.Context, r *watch.Reader, v *Verified, from, to uint64) error {
	lists := r.Lists(ctx, from, to)
	confirmed, err := r.Confirm(ctx, from, to, lists...)
	if err != nil {
		return err
	}
	messages, err := a.standing(ctx, from, to)
	if err != nil {
		return err
	}
	n, c, differences := compare(r.MatchConfirmed(confirmed), messages)
	v.Events, v.Missing, v.False = v.Events+n, v.Missing+c.Missing, v.False+c.False
	v.Differences = append(v.Differences, differences[:min(len(differences), maxShown-len(v.Differences))]...)
	for _, l := range lists {
		i := slices.IndexFunc(v.Endpoints, func(e Endpoint) bool { return e.Endpoint == l.Endpoint })
		if i < 0 {
			i = len(v.Endpoints)
			v.Endpoints = append(v.Endpoints, Endpoint{Endpoint: l.Endpoint})
		}
		e := &v.Endpoints[i]
		if l.Err != nil {
			e.Error = l.Err.Error()
			continue
		}
		n, c, _ := compare(r.Match(l), messages)
		e.Events, e.Missing, e.False = e.Events+n, e.Missing+c.Missing, e.False+c.False
	}
	return nil
}

// standing returns the messages of the events in a range of blocks that were not retracted, by their ids.
func (a *Admin) standing(ctx context.Context, from, to uint64) (map[string]*events.Message, error) {
	rows, err := a.db.Query(ctx, `SELECT message FROM processed_events WHERE chain_id = $1 AND block_number BETWEEN $2 AND $3 AND status <> 'retracted'`,
		int64(a.ChainID), int64(from), int64(to))
	if err != nil {
		return nil, fmt.Errorf("read the messages: %w", err)
	}
	all := map[string]*events.Message{}
	var text []byte
	_, err = pgx.ForEachRow(rows, []any{&text}, func() error {
		m := new(events.Message)
		if err := json.Unmarshal(text, m); err != nil {
			return err
		}
		all[m.EventID] = m
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the messages: %w", err)
	}
	return all, nil
}

// compare compares the events of blocks with messages. It returns the number of events, and the differences in the order of the chain.
func compare(blocks []store.Read, messages map[string]*events.Message) (n int, c Comparison, differences []Difference) {
	right := map[string]bool{}
	for i := range blocks {
		b := &blocks[i]
		n += len(b.Found)
		for k := range b.Found {
			o := &b.Found[k]
			id := o.ID.String()
			m := messages[id]
			if m != nil && m.BlockHash == b.Hash && m.BlockNumber == b.Number && m.Escrow == o.Escrow && m.Type == o.Event.Name && slices.Equal(m.Args, o.Args) {
				right[id] = true
				continue
			}
			c.Missing++
			differences = append(differences, Difference{"missing", id, o.Event.Name, o.Escrow, b.Number, b.Hash})
		}
	}
	for id, m := range messages {
		if !right[id] {
			c.False++
			differences = append(differences, Difference{"false", id, m.Type, m.Escrow, m.BlockNumber, m.BlockHash})
		}
	}
	slices.SortFunc(differences, Difference.compare)
	return n, c, differences
}

func (d Difference) compare(o Difference) int {
	return cmp.Or(cmp.Compare(d.BlockNumber, o.BlockNumber), cmp.Compare(d.EventID, o.EventID), cmp.Compare(d.Kind, o.Kind))
}
