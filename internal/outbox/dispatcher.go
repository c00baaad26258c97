package outbox

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

const (
	// sendTimeout limits one batch.
	sendTimeout = 15 * time.Second
	// window is how many entries a broker has at most that no worker has begun. The others wait in the table, where lanes get equal
	// shares; a broker delivers in the order of sending.
	window = 1000
	// windowPause is the pause before the next look at a full window.
	windowPause = 20 * time.Millisecond
	// idleAfter is after how long without entries an outage of the broker counts as over: another dispatcher has sent the entries
	// that this one could not send. It exceeds sendTimeout and the longest pause of another one that fails.
	idleAfter = 25 * time.Second
)

// DispatcherConfig configures a [Dispatcher].
type DispatcherConfig struct {
	// Transport sends the ids. Required.
	Transport Transport
	// ResendAfter is after how long an id is sent again that no worker has begun. The pause doubles each time, up to ten times
	// ResendAfter. Default 60 s.
	ResendAfter time.Duration
	// Component is the name in log lines. Default "outbox".
	Component string
	// Logger receives state changes. Default: discard.
	Logger *slog.Logger
	// Observer receives what the dispatcher does. Default: none.
	Observer Observer
}

// Dispatcher sends the ids of due entries to a broker. Any number of them, in any number of processes, share the work. It records
// an id as sent before it sends it; if it dies in between, the id is sent after ResendAfter.
type Dispatcher struct {
	*Outbox
	cfg    DispatcherConfig
	lanes  lanes
	broker *outage
	outage *outage // of the database
	wake   chan struct{}
}

// NewDispatcher returns a Dispatcher.
func (o *Outbox) NewDispatcher(cfg DispatcherConfig) *Dispatcher {
	cfg.ResendAfter = cmp.Or(cfg.ResendAfter, time.Minute)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Logger = cfg.Logger.With("component", cmp.Or(cfg.Component, "outbox"))
	if cfg.Observer == nil {
		cfg.Observer = Unobserved{}
	}
	return &Dispatcher{
		Outbox: o, cfg: cfg, wake: make(chan struct{}, 1), lanes: lanes{mine: func(laneKey) bool { return true }},
		broker: newOutage("broker", cfg.Logger, cfg.Observer, error.Error), outage: newOutage("dispatcher", cfg.Logger, cfg.Observer, postgres.Reason),
	}
}

// Health returns nil while the database and the broker answer, and otherwise the cause.
func (d *Dispatcher) Health() error { return cmp.Or(d.outage.health(), d.broker.health()) }

// Notify makes the dispatcher look at the table at once. It never blocks.
func (d *Dispatcher) Notify() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run sends until ctx ends, and returns nil then. It finishes the current batch. Call it once.
func (d *Dispatcher) Run(ctx context.Context) error {
	listening := make(chan struct{})
	go func() { defer close(listening); d.listen(ctx, d.Notify) }()
	defer func() { <-listening }()
	working := context.WithoutCancel(ctx)
	sent := time.Now() // when it last had entries
	for ctx.Err() == nil {
		entries, more, err := d.mark(working)
		if err != nil {
			wait(ctx, d.outage.failed(err))
			continue
		}
		d.outage.succeeded()
		switch {
		case len(entries) > 0:
			sent = time.Now()
			if err := d.send(working, entries); err != nil {
				wait(ctx, d.broker.failed(err))
				continue
			}
			d.broker.succeeded()
		case time.Since(sent) > idleAfter:
			d.broker.succeeded()
		}
		pause := poll
		if more {
			pause = minInterval
			if len(entries) == 0 {
				pause = windowPause
			}
		}
		d.pause(ctx, pause)
	}
	return nil
}

// pause waits for a time, or a notification.
func (d *Dispatcher) pause(ctx context.Context, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-d.wake:
		wait(ctx, minInterval)
	}
}

// sending is an entry that was marked as sent.
type sending struct {
	id, lane string
	age      time.Duration
}

// mark marks due entries as sent. more reports that there may be others.
func (d *Dispatcher) mark(ctx context.Context) (entries []sending, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxTurn)
	defer cancel()
	begin := time.Now()
	var batch pgx.Batch
	var now time.Time
	var found []laneKey
	d.queuePlan(&batch, &now)
	if !d.table.ClaimsWaitForDisk {
		batch.Queue(sqlNoWait)
	}
	discovers := d.lanes.discovers(begin)
	if discovers {
		d.queueDiscover(&batch, &d.lanes, &found)
	}
	want := d.lanes.demand(chunk, begin, func(string) int { return chunk })
	var picked, blocked int
	if len(want.lanes) > 0 {
		batch.Queue(d.sql.send, want.partitions, want.lanes, want.since, want.shares, want.most, d.cfg.ResendAfter, window).Query(func(rows pgx.Rows) error {
			var id, lane *string
			var partition *int32
			var created, due *time.Time
			_, err := pgx.ForEachRow(rows, []any{&want.most, &picked, &blocked, &id, &lane, &partition, &created, &due}, func() error {
				if id != nil {
					entries = append(entries, sending{*id, *lane, now.Sub(*created)})
					d.lanes.got(laneKey{*partition, *lane}, *due, begin)
				}
				return nil
			})
			return err
		})
	}
	if err := d.db.SendBatch(ctx, &batch).Close(); err != nil {
		d.lanes.sweepAt = time.Time{}
		return nil, false, fmt.Errorf("read entries of %s to send: %w", d.table.Name, err)
	}
	more = d.lanes.end(want, picked, blocked, len(entries), now, begin) || len(found) > 0
	if discovers {
		d.lanes.discovered(found, begin)
	}
	return entries, more, nil
}

// send sends marked entries. After an error it takes the marks back, because another dispatcher may reach the broker.
func (d *Dispatcher) send(ctx context.Context, entries []sending) error {
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.id
	}
	limited, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	err := d.cfg.Transport.Send(limited, ids)
	if err == nil {
		for _, e := range entries {
			d.cfg.Observer.Sent(e.lane, e.age)
		}
		return nil
	}
	ctx, cancel = context.WithTimeout(ctx, maxTurn)
	defer cancel()
	if _, unsend := d.db.Exec(ctx, d.sql.unsend, ids); unsend != nil { // ResendAfter does the same, later
		d.cfg.Logger.Debug("entries not marked as unsent", "table", d.table.Name, "count", len(ids), "err", unsend)
	}
	return err
}
