package mirrortest

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

// Hook intercepts operations between the Writer and the store. It calls do to execute the operation: once, never,
// repeatedly, or after it has returned. It returns the error for the Writer, or nil for the operation's own result.
type Hook func(ctx context.Context, op mirror.Op, do func()) error

// Memory is an in-memory Redis with the keys of one mirror. Its clock is time.Now, and so the fake one in a synctest
// bubble. It is safe for concurrent use.
type Memory struct {
	mu     sync.Mutex
	keys   map[string]any // members, fields or string
	hook   Hook
	skew   time.Duration
	log    []Applied
	events []Event
}

type (
	members = map[string]struct{}
	fields  = map[string]string
)

// Applied is a write that changed the store, in log order.
type Applied struct {
	mirror.Write
	At time.Time
	// Before and After are the active sets by kind, sorted.
	Before, After map[string][]string
}

// Event is a message on relayer:events.
type Event struct {
	Type   string `json:"type"`
	ID     string `json:"id"`
	URL    string `json:"url"`
	Kind   string `json:"kind"` // of a service
	Epoch  uint64 `json:"epoch"`
	Seq    uint64 `json:"seq"`
	At     string `json:"at"`
	Reason string `json:"reason"`
}

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{keys: map[string]any{}} }

var names mirror.Keys

// SetHook sets the hook for all later operations; nil removes it. Running operations keep the previous hook.
func (m *Memory) SetHook(h Hook) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hook = h
}

// SetSkew sets how far the store's clock is ahead of the local one.
func (m *Memory) SetSkew(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.skew = d
}

// Log returns every write that was applied.
func (m *Memory) Log() []Applied {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.log)
}

// Events returns everything that was published.
func (m *Memory) Events() []Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.events)
}

// Read implements mirror.Store.
func (m *Memory) Read(ctx context.Context, kinds []string) (mirror.View, error) {
	return through(ctx, m, mirror.OpRead, func() mirror.View { return m.read(kinds) })
}

// Write implements mirror.Store.
func (m *Memory) Write(ctx context.Context, w mirror.Write) (mirror.Reply, error) {
	return through(ctx, m, w.Op, func() mirror.Reply { return m.write(w) })
}

// through executes an operation through the hook. An operation that ends after the hook has returned changes the
// store, but not the result.
func through[T any](ctx context.Context, m *Memory, op mirror.Op, do func() T) (T, error) {
	var answer T
	if err := ctx.Err(); err != nil {
		return answer, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	hook := m.hook
	if hook == nil {
		return do(), nil
	}
	m.mu.Unlock()
	answered := false
	err := hook(ctx, op, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if reply := do(); !answered {
			answer = reply
		}
	})
	m.mu.Lock()
	answered = true
	return answer, err
}

func (m *Memory) now() time.Time { return time.Now().Add(m.skew).Round(0).Truncate(time.Microsecond) }

func (m *Memory) read(kinds []string) mirror.View {
	view := mirror.View{Meta: m.meta(), Now: m.now(), Active: map[string][]string{}}
	for _, kind := range kinds {
		switch key := m.keys[names.Active(kind)].(type) {
		case nil:
			view.Active[kind] = []string{}
		case members:
			view.Active[kind] = slices.Collect(maps.Keys(key))
		default:
			view.Active[kind] = []string{}
			view.Wrong = append(view.Wrong, kind)
		}
	}
	if len(kinds) > 0 {
		services, _ := m.keys[names.Services()].(members)
		view.Services = slices.Collect(maps.Keys(services))
	}
	return view
}

func (m *Memory) meta() mirror.Meta {
	h, _ := m.keys[names.Meta()].(fields)
	number := func(name string) uint64 {
		n, _ := strconv.ParseUint(h[name], 10, 53)
		return n
	}
	updated, _ := time.Parse(time.RFC3339Nano, h["updated_at"])
	meta := mirror.Meta{
		Cluster:   h["cluster"],
		Token:     mirror.Token{Epoch: number("epoch"), Seq: number("seq")},
		Leader:    h["leader"],
		Interval:  time.Duration(number("interval")) * time.Millisecond,
		UpdatedAt: updated,
	}
	if h["kinds"] != "" {
		meta.Kinds = strings.Split(h["kinds"], ",")
	}
	return meta
}

func (m *Memory) write(w mirror.Write) mirror.Reply {
	held, now := m.meta(), m.now()
	reply := mirror.Reply{Now: now, Held: held}
	switch order := w.Token.Compare(held.Token); {
	case held.Cluster != "" && held.Cluster != w.Cluster:
		reply.Outcome = mirror.Foreign
	case order < 0, held.Token.Epoch == w.Token.Epoch && held.Leader != w.Leader:
		reply.Outcome = mirror.Older
	case order == 0:
		reply.Outcome = mirror.Duplicate
	case now.After(w.NotAfter):
		reply.Outcome = mirror.Expired
	case w.Op != mirror.OpClaim && held.Token != w.Base:
		reply.Outcome = mirror.Mismatch
	default:
		reply.Outcome = mirror.Applied
		before := m.active()
		reply.Sizes = m.apply(w, now)
		m.log = append(m.log, Applied{Write: w, At: now, Before: before, After: m.active()})
	}
	return reply
}

func (m *Memory) apply(w mirror.Write, now time.Time) []int {
	at := timefmt.Format(now)
	publish := func(typ, id, url, kind, reason string) {
		m.events = append(m.events, Event{typ, id, url, kind, w.Token.Epoch, w.Token.Seq, at, reason})
	}
	meta := fetch[fields](m, names.Meta())
	maps.Copy(meta, fields{
		"cluster": w.Cluster, "leader": w.Leader, "updated_at": at,
		"epoch":    strconv.FormatUint(w.Token.Epoch, 10),
		"seq":      strconv.FormatUint(w.Token.Seq, 10),
		"interval": strconv.FormatInt(w.Interval.Milliseconds(), 10),
	})
	if len(w.Kinds) > 0 {
		meta["kinds"] = strings.Join(w.Kinds, ",")
	}
	if w.Op == mirror.OpClaim {
		publish("leader", w.Leader, "", "", "")
	}
	var sizes []int
	for _, change := range w.Sets {
		key := names.Active(change.Kind)
		_, isSet := m.keys[key].(members)
		if m.keys[key] != nil && !isSet && len(change.Add) == 0 && !change.Replace {
			sizes = append(sizes, -1)
			continue
		}
		set := fetch[members](m, key)
		for _, add := range change.Add {
			set[add.ID] = struct{}{}
			publish("added", add.ID, add.URL, change.Kind, add.Reason)
		}
		for _, gone := range change.Remove {
			delete(set, gone.ID)
			publish("removed", gone.ID, gone.URL, change.Kind, gone.Reason)
		}
		sizes = append(sizes, len(set))
	}
	for _, st := range w.Status {
		services := fetch[members](m, names.Services())
		if len(st.Fields) == 0 {
			delete(m.keys, names.Status(st.ID))
			delete(services, st.ID)
			continue
		}
		news := fields{}
		for pair := range slices.Chunk(st.Fields, 2) {
			news[pair[0]] = pair[1]
		}
		hash := fetch[fields](m, names.Status(st.ID))
		if !st.Inherit || hash["kind"] != news["kind"] || hash["url"] != news["url"] {
			maps.Copy(hash, news)
		}
		services[st.ID] = struct{}{}
	}
	// Redis has no empty sets or hashes.
	maps.DeleteFunc(m.keys, func(_ string, v any) bool {
		set, isSet := v.(members)
		return isSet && len(set) == 0
	})
	return sizes
}

// fetch returns a key as a T, and creates it if it has another type.
func fetch[T ~map[string]V, V any](m *Memory, key string) T {
	v, ok := m.keys[key].(T)
	if !ok {
		v = T{}
		m.keys[key] = v
	}
	return v
}

func (m *Memory) active() map[string][]string {
	active := map[string][]string{}
	for key, v := range m.keys {
		if kind, ok := strings.CutSuffix(key, ":active"); ok {
			if set, ok := v.(members); ok {
				active[kind] = slices.Sorted(maps.Keys(set))
			}
		}
	}
	return active
}

// Snapshot returns a copy of the data, to be restored as the state of a lagging replica.
func (m *Memory) Snapshot() map[string]any {
	m.mu.Lock()
	defer m.mu.Unlock()
	return clone(m.keys)
}

// Restore replaces the data with a snapshot; nil empties the store.
func (m *Memory) Restore(snapshot map[string]any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys = clone(snapshot)
}

func clone(keys map[string]any) map[string]any {
	out := map[string]any{}
	for key, v := range keys {
		switch v := v.(type) {
		case members:
			out[key] = maps.Clone(v)
		case fields:
			out[key] = maps.Clone(v)
		default:
			out[key] = v
		}
	}
	return out
}

// Members implements Backend.
func (m *Memory) Members(key string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	set, _ := m.keys[key].(members)
	return slices.Sorted(maps.Keys(set))
}

// Hash implements Backend.
func (m *Memory) Hash(key string) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, _ := m.keys[key].(fields)
	return maps.Clone(h)
}

// SAdd implements Backend.
func (m *Memory) SAdd(key string, ids ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		fetch[members](m, key)[id] = struct{}{}
	}
}

// SRem implements Backend.
func (m *Memory) SRem(key string, ids ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		delete(fetch[members](m, key), id)
	}
}

// HSet implements Backend.
func (m *Memory) HSet(key string, pairs ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for pair := range slices.Chunk(pairs, 2) {
		fetch[fields](m, key)[pair[0]] = pair[1]
	}
}

// Set implements Backend.
func (m *Memory) Set(key, value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys[key] = value
}

// Flush implements Backend.
func (m *Memory) Flush() { m.Restore(nil) }

// Keys implements Backend.
func (m *Memory) Keys() mirror.Keys { return names }

// Store implements Backend.
func (m *Memory) Store() mirror.Store { return m }

// parseEvent decodes an event like a subscriber.
func parseEvent(payload string) (Event, error) {
	var e Event
	err := json.Unmarshal([]byte(payload), &e)
	return e, err
}
