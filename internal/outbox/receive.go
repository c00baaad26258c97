package outbox

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"
)

// acknowledgeTimeout limits an acknowledgement. A message that is not acknowledged arrives again, and is then acknowledged.
const acknowledgeTimeout = 10 * time.Second

// receive receives messages until ctx ends, as many as there is room for. A turn claims their entries.
func (w *Worker) receive(ctx context.Context) {
	for ctx.Err() == nil {
		room := w.pool.reserve(chunk)
		if room == 0 {
			wait(ctx, minInterval)
			continue
		}
		messages, err := w.cfg.Transport.Receive(ctx, room)
		w.pool.add(room-len(messages), nil)
		switch {
		case err == nil:
			w.receiver.succeeded()
		case ctx.Err() == nil:
			wait(ctx, w.receiver.failed(err))
			continue
		}
		if len(messages) > 0 {
			w.mu.Lock()
			w.arrived = append(w.arrived, messages...)
			w.mu.Unlock()
			w.Wake()
		}
	}
}

// storable reports whether the table may have an id. Postgres refuses others, and with them the turn and all its claims. Another program
// may have sent them.
func storable(id string) bool { return utf8.ValidString(id) && !strings.ContainsRune(id, 0) }

// acknowledge ends messages after the turn that claimed their entries. Those of the others are finished, claimed, delayed or
// unknown, so their messages end, too.
func (w *Worker) acknowledge(ctx context.Context, messages []Message) {
	ctx, cancel := context.WithTimeout(ctx, acknowledgeTimeout)
	defer cancel()
	if err := w.cfg.Transport.Acknowledge(ctx, messages); err != nil {
		w.cfg.Logger.Debug("messages not acknowledged", "table", w.table.Name, "count", len(messages), "err", err)
	}
}

// wait waits for a time, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
