package warnings

import (
	"context"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Interval is the minimum time between two lines with the same cause. It is short enough to keep the cause among the
// latest lines, and long enough not to fill the log.
const Interval = time.Minute

// maxCauses limits how many causes are stored. With more, all are forgotten, and logged again.
const maxCauses = 1024

// Limit returns a handler that drops a warning or error whose cause was logged less than Interval ago, by any logger of
// that handler. The cause is the text of the attribute "err". A record with further attributes is about one
// transaction, key or request, and always passes. Attributes that its logger adds, other than "component", are part of
// the cause.
func Limit(next slog.Handler) slog.Handler {
	return &handler{next: next, causes: &causes{seen: map[string]*cause{}}}
}

type handler struct {
	next   slog.Handler
	scope  string // attributes that the logger adds
	causes *causes
}

// causes is shared by all loggers of one handler.
type causes struct {
	mu   sync.Mutex
	seen map[string]*cause
}

type cause struct {
	logged  time.Time
	omitted int // since then
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	err := onlyErr(r)
	if r.Level < slog.LevelWarn || err == "" {
		return h.next.Handle(ctx, r)
	}
	omitted, ok := h.causes.admit(h.scope + connection.ReplaceAllString(err, ""))
	if !ok {
		return nil
	}
	if omitted > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("omitted", omitted))
	}
	return h.next.Handle(ctx, r)
}

// connection matches the local end of a connection, which differs each time.
var connection = regexp.MustCompile(`\S+:\d+->`)

// onlyErr returns the text of the attribute "err", empty if the record has none or has others.
func onlyErr(r slog.Record) (text string) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key != "err" || r.NumAttrs() != 1 {
			return false
		}
		text = a.Value.Resolve().String()
		return true
	})
	return text
}

// admit reports whether a cause may be logged now, and how many lines were omitted before.
func (c *causes) admit(key string) (omitted int, ok bool) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.seen[key]
	if last != nil && now.Sub(last.logged) < Interval {
		last.omitted++
		return 0, false
	}
	if last != nil {
		omitted = last.omitted
	} else if len(c.seen) >= maxCauses {
		clear(c.seen)
	}
	c.seen[key] = &cause{logged: now}
	return omitted, true
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	var scope strings.Builder
	scope.WriteString(h.scope)
	for _, a := range attrs {
		if a.Key != "component" {
			scope.WriteString(a.String() + "\n")
		}
	}
	return &handler{next: h.next.WithAttrs(attrs), scope: scope.String(), causes: h.causes}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{next: h.next.WithGroup(name), scope: h.scope + name + ".", causes: h.causes}
}
