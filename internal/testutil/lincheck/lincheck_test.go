package lincheck

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// memory is a directory with configurable faults.
type memory struct {
	mu    sync.Mutex
	state state
	// lose makes it acknowledge every n-th registration without executing it.
	lose, registered int
	// stale makes lists answer from a state that is that many writes old.
	stale int
	past  []state
}

func (m *memory) Write(_ context.Context, c Call) (Answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.past = append(m.past, m.state)
	// Find the one answer that the specification accepts.
	for id := range c.Values {
		if e, ok := m.state.entries[id]; ok && e.Owner != c.Owner {
			_, m.state = step(m.state, c, Answer{Conflict: true})
			return Answer{}, ErrConflict
		}
	}
	for r := range idsPerShard + 1 {
		for u := range idsPerShard + 1 {
			for d := range idsPerShard + 1 {
				a := Answer{Registered: r, Unchanged: u, Removed: d}
				if ok, next := step(m.state, c, a); ok {
					if r > 0 {
						if m.registered++; m.lose > 0 && m.registered%m.lose == 0 {
							return a, nil
						}
					}
					m.state = next
					return a, nil
				}
			}
		}
	}
	return Answer{}, fmt.Errorf("no answer fits %+v", c)
}

func (m *memory) List(_ context.Context, ids []string) (map[string]Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.state
	if n := len(m.past) - m.stale; m.stale > 0 && n >= 0 {
		s = m.past[n]
	}
	found := make(map[string]Entry)
	for _, id := range ids {
		if e, ok := s.entries[id]; ok {
			found[id] = e
		}
	}
	return found, nil
}

func run(t *testing.T, m *memory) *History {
	m.state = model.Init().(state)
	h := NewHistory()
	var g errgroup.Group
	for i := range 2 {
		c := &Client{Number: i, Owner: fmt.Sprintf("o%d", i), Directory: m, History: h, Rand: rand.New(rand.NewPCG(1, uint64(i)))}
		g.Go(func() error { return c.Run(t.Context(), 500) })
	}
	require.NoError(t, g.Wait())
	return h
}

func TestCheck_CorrectDirectory_Passes(t *testing.T) {
	h := run(t, &memory{})
	require.Equal(t, 1000, h.Len())
	require.NoError(t, h.Check(time.Minute))
	require.ErrorContains(t, h.CheckWithout(time.Minute), "not linearizable")
}

func TestCheck_LostWrite_Fails(t *testing.T) {
	err := run(t, &memory{lose: 20}).Check(time.Minute)
	require.ErrorContains(t, err, "not linearizable")
	require.ErrorContains(t, err, "the last of these fits nowhere:")
}

func TestCheck_StaleRead_Fails(t *testing.T) {
	require.ErrorContains(t, run(t, &memory{stale: 3}).Check(time.Minute), "not linearizable")
}

func TestCheck_UnknownWrite_MayHappenOrNot(t *testing.T) {
	write := func(h *History, seq uint64, value string, a Answer) {
		h.Begin(0, Call{Kind: Register, Owner: "o", Seq: seq, Values: map[string]string{"x": value}})(a)
	}
	see := func(h *History, value string) {
		found := map[string]Entry{}
		if value != "" {
			found["x"] = Entry{"o", value}
		}
		h.Begin(1, Call{Kind: List, Values: map[string]string{"x": ""}})(Answer{Entries: found})
	}
	for name, tc := range map[string]struct {
		seen []string
		ok   bool
	}{
		"never":       {[]string{"", ""}, true},
		"at once":     {[]string{"v", "v"}, true},
		"later":       {[]string{"", "v"}, true},
		"and undone?": {[]string{"v", ""}, false},
	} {
		h := NewHistory()
		write(h, 1, "v", Answer{Unknown: true})
		for _, v := range tc.seen {
			see(h, v)
		}
		if err := h.Check(time.Minute); tc.ok {
			require.NoError(t, err, name)
		} else {
			require.Error(t, err, name)
		}
	}
	// A later write of the same owner fences it, so it can no longer happen.
	h := NewHistory()
	write(h, 1, "v", Answer{Unknown: true})
	write(h, 2, "w", Answer{Registered: 1})
	see(h, "w")
	see(h, "v")
	require.Error(t, h.Check(time.Minute))
}
