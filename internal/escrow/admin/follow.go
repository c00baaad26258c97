package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

const (
	// followEvery is how often the outbox is read for messages that were published.
	followEvery = 500 * time.Millisecond
	// followMargin is how much older than the newest message another one may be that is seen later: the time of a message is that of the
	// begin of its transaction. The limits of statements and locks end a step's transaction before.
	followMargin = time.Minute
	// followPage is how many messages a statement reads.
	followPage = 5_000
)

// Published is a message that a target has accepted.
type Published struct {
	To          string            `json:"to"`
	PublishedAt timefmt.Timestamp `json:"publishedAt"`
	Message     *events.Message   `json:"message"`
}

// Follower sees the messages that targets accept: those that are not published when it is made, and all that are stored later.
//
// It misses none, with two limits: a message is not seen if it is deleted before its acceptance was read, by an operator's drop or by a
// retention below a second; or if its transaction took longer than a minute. It holds the ids of the unpublished messages in memory.
type Follower struct {
	*Admin
	suffix string // of the subjects: an escrow; "" for all

	// The numbers of a chain's messages grow in the order in which they become visible, because each transaction that inserts some locks
	// the chain's row before. So the highest number that was seen is a cursor.

	seen   int64
	newest time.Time // time of the newest message
	// queues has the ids of the unpublished messages by subject, in order. Only the first of each can be published next.
	queues map[string][]string
}

// Follow returns a Follower of the messages of an escrow, or of all without one.
func (a *Admin) Follow(ctx context.Context, escrow *common.Address) (*Follower, error) {
	f := &Follower{Admin: a, queues: map[string][]string{}}
	if escrow != nil {
		f.suffix = (&events.Envelope{Escrow: *escrow}).OrderingKey()
	}
	if err := f.begin(ctx); err != nil {
		return nil, f.failed(err)
	}
	return f, nil
}

func (f *Follower) failed(err error) error {
	return fmt.Errorf("follow the messages of chain %d: %w", f.ChainID, err)
}

// Run calls emit for each message, in the order of each escrow, until ctx ends, and returns nil then.
func (f *Follower) Run(ctx context.Context, emit func(Published) error) error {
	for {
		progress, err := f.turn(ctx, emit)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return f.failed(err)
		case progress:
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followEvery):
		}
	}
}

// begin reads where the follower begins.
func (f *Follower) begin(ctx context.Context) error {
	tx, err := f.db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if err := tx.QueryRow(ctx, `SELECT now(), coalesce((SELECT max(seq) FROM escrow_outbox WHERE created_at > now() - $1::interval AND starts_with(lane, $2)), 0)`,
		followMargin, f.prefix()).Scan(&f.newest, &f.seen); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, `SELECT seq, created_at, id, subject FROM escrow_outbox WHERE state IN ('waiting', 'dead') AND starts_with(lane, $1)
		AND right(subject, length($2)) = $2 ORDER BY seq`, f.prefix(), f.suffix)
	if err != nil {
		return err
	}
	_, err = f.add(rows)
	return err
}

// add adds messages to the queues, and returns their number.
func (f *Follower) add(rows pgx.Rows) (n int, err error) {
	var seq int64
	var created time.Time
	var id, subject string
	_, err = pgx.ForEachRow(rows, []any{&seq, &created, &id, &subject}, func() error {
		n++
		f.queues[subject] = append(f.queues[subject], id)
		f.seen = max(f.seen, seq)
		if created.After(f.newest) {
			f.newest = created
		}
		return nil
	})
	return n, err
}

// turn reads new messages, and which ones were published. It reports whether there may be more.
func (f *Follower) turn(ctx context.Context, emit func(Published) error) (progress bool, err error) {
	rows, err := f.db.Query(ctx, `SELECT seq, created_at, id, subject FROM escrow_outbox WHERE created_at > $1 AND seq > $2 AND starts_with(lane, $3)
		AND right(subject, length($4)) = $4 ORDER BY seq LIMIT $5`, f.newest.Add(-followMargin), f.seen, f.prefix(), f.suffix, followPage)
	if err != nil {
		return false, err
	}
	added, err := f.add(rows)
	if err != nil {
		return false, err
	}
	progress = added == followPage
	for subjects := range slices.Chunk(slices.Collect(maps.Keys(f.queues)), followPage) {
		published, err := f.published(ctx, subjects, emit)
		if err != nil {
			return false, err
		}
		progress = progress || published
	}
	return progress, nil
}

// published emits the first message of each subject if it was published, and reports whether any was.
func (f *Follower) published(ctx context.Context, subjects []string, emit func(Published) error) (some bool, err error) {
	first := make([]string, len(subjects))
	for i, s := range subjects {
		first[i] = f.queues[s][0]
	}
	rows, err := f.db.Query(ctx, `SELECT q.subject, e.lane, e.settled_at, e.payload FROM unnest($1::text[], $2::text[]) AS q (subject, id)
		LEFT JOIN escrow_outbox e ON e.id = q.id WHERE e.id IS NULL OR e.state = 'done' ORDER BY e.seq`, subjects, first)
	if err != nil {
		return false, err
	}
	var subject string
	var lane *string
	var at timefmt.Timestamp
	var payload []byte
	_, err = pgx.ForEachRow(rows, []any{&subject, &lane, &at, &payload}, func() error {
		some = true
		if f.queues[subject] = f.queues[subject][1:]; len(f.queues[subject]) == 0 {
			delete(f.queues, subject)
		}
		if lane == nil { // it was deleted
			return nil
		}
		p := Published{To: (*lane)[len(f.prefix()):], PublishedAt: at, Message: new(events.Message)}
		if err := json.Unmarshal(payload, p.Message); err != nil {
			return fmt.Errorf("published message: %w", err)
		}
		return emit(p)
	})
	return some, err
}
