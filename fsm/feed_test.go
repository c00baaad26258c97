package fsm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// requireIdle fails the test if the feed has a change or has ended.
func requireIdle(t testing.TB, f *Feed) {
	t.Helper()
	select {
	case <-f.Ready():
		c, err := f.Next(t.Context())
		require.Fail(t, "the feed is not idle", "%s %v", dumpChanges(c), err)
	default:
	}
}

// drain reads a feed until it would block or ends.
func drain(t testing.TB, f *Feed) (all []Changes, err error) {
	t.Helper()
	for {
		select {
		case <-f.Ready():
		default:
			return all, nil
		}
		c, err := f.Next(t.Context())
		if err != nil {
			return all, err
		}
		all = append(all, c)
	}
}

func TestFeed_Changes_AreDeliveredInOrder(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	r.register(edge1, 1, "a")
	a, _ := r.State().Get("a")
	state, feed := r.Watch()
	require.Same(t, r.State(), state)
	requireIdle(t, feed)

	r.register(edge1, 2, "a") // unchanged: no reader wakes
	r.do(opEstablish("n-2", 0))
	requireIdle(t, feed)

	r.do(opRegister(&rollcallv1.RegisterOperation{
		Fence: writer(edge1, 1, 3, 2), Services: [][]byte{service("c"), service("b", "v2")}, FullSet: true,
	}))
	b, _ := r.State().Get("b")
	c, _ := r.State().Get("c")
	got, err := feed.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, Changes{Index: 5, Changes: []Change{{nil, c}, {nil, b}, {a, nil}}}, got, "in the order of the command, then what it removed")

	r.do(opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge1, 1, 4, 2), Services: [][]byte{service("b", "v3")}}))
	b3, _ := r.State().Get("b")
	got, err = feed.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, Changes{Index: 6, Changes: []Change{{b, b3}}}, got)
	requireIdle(t, feed)
}

func TestFeed_NoChanges_Blocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t)
		_, feed := r.Watch()
		got := make(chan Changes)
		go func() {
			c, err := feed.Next(t.Context())
			if err == nil {
				got <- c
			}
		}()
		synctest.Wait() // until it blocks
		select {
		case <-got:
			require.Fail(t, "nothing has changed")
		default:
		}
		r.register(edge1, 1, "a")
		require.Equal(t, uint64(2), (<-got).Index)

		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		errs := make(chan error)
		_, feed = r.Watch()
		go func() {
			_, err := feed.Next(ctx)
			errs <- err
		}()
		synctest.Wait()
		cancel(cause)
		require.ErrorIs(t, <-errs, cause)

		// A change that is already there must be delivered even after ctx has ended.
		r.register(edge1, 2, "b")
		_, err := feed.Next(ctx)
		require.NoError(t, err)
	})
}

func TestWatchFrom_Index_GivesLaterChanges(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	for i := range 5 {
		r.register(edge1, uint64(i+1), fmt.Sprintf("a-%d", i)) // indexes 2 to 6
	}
	r.register(edge1, 6, "a-0") // 7, unchanged
	for index, want := range map[uint64][]uint64{
		0: {2, 3, 4, 5, 6}, 1: {2, 3, 4, 5, 6}, 2: {3, 4, 5, 6}, 5: {6}, 6: nil, 7: nil,
	} {
		feed, err := r.WatchFrom(index)
		require.NoError(t, err, "from %d", index)
		all, err := drain(t, feed)
		require.NoError(t, err)
		var got []uint64
		for _, c := range all {
			got = append(got, c.Index)
		}
		require.Equal(t, want, got, "from %d", index)
	}
	_, err := r.WatchFrom(8)
	require.ErrorIs(t, err, ErrCompacted, "ahead of this replica")
}

// A restore must end all feeds. A reader from the replaced history must not be able to resume.
func TestRestore_OpenFeeds_AreCompacted(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	r.register(edge1, 1, "a") // 2
	backup := snapshotOf(t, r.State())
	r.register(edge1, 2, "b") // 3
	behind, err := r.WatchFrom(0)
	require.NoError(t, err)
	_, upToDate := r.Watch()
	r.register(edge1, 3, "c") // 4
	r.register(edge1, 4, "d") // 5
	_, waiting := r.Watch()

	require.NoError(t, restore(r.Machine, backup))
	for _, f := range []*Feed{behind, upToDate, waiting} {
		for range 2 { // and keeps failing
			<-f.Ready()
			_, err := f.Next(t.Context())
			require.ErrorIs(t, err, ErrCompacted)
		}
	}
	resumable := func(want map[uint64]bool) {
		t.Helper()
		for index, ok := range want {
			_, err := r.WatchFrom(index)
			require.Equal(t, ok, err == nil, "from %d: %v", index, err)
		}
	}
	resumable(map[uint64]bool{0: false, 1: false, 2: true, 3: false, 4: false, 5: false})

	_, fresh := r.Watch()
	r.index = 9
	r.register(edge1, 2, "a") // 10, unchanged
	r.register(edge1, 3, "e") // 11
	r.register(edge1, 4, "f") // 12
	resumable(map[uint64]bool{1: false, 2: true, 3: false, 5: false, 9: false, 10: true, 11: true, 12: true, 13: false})
	for _, f := range []*Feed{fresh, mustWatchFrom(t, r.Machine, 2), mustWatchFrom(t, r.Machine, 10)} {
		all, err := drain(t, f)
		require.NoError(t, err)
		require.Len(t, all, 2)
		require.Equal(t, "e", all[0].Changes[0].After.ID)
		require.Equal(t, "f", all[1].Changes[0].After.ID)
	}
}

func mustWatchFrom(t *testing.T, m *Machine, index uint64) *Feed {
	f, err := m.WatchFrom(index)
	require.NoError(t, err)
	return f
}

// A reader further behind than the window must be cut off, retain no memory, and be unable to resume.
func TestFeed_ReaderTooSlow_IsCutOff(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	r.window.limit = 10
	_, slow := r.Watch()
	_, reader := r.Watch()
	next := func(f *Feed) int {
		t.Helper()
		c, err := f.Next(t.Context())
		require.NoError(t, err)
		return len(c.Changes)
	}
	for i := range 10 {
		r.register(edge1, uint64(i+1), fmt.Sprintf("a-%d", i)) // 2 to 11
		require.Equal(t, 1, next(reader))
	}
	require.NotNil(t, mustWatchFrom(t, r.Machine, 1))
	require.NotEqual(t, compacted, slow.at.next.Load(), "ten behind, ten are kept")
	r.register(edge1, 11, "b-1", "b-2", "b-3") // 12
	require.Equal(t, 3, next(reader))
	require.Equal(t, compacted, slow.at.next.Load(), "an idle reader retains no list")
	for range 2 {
		_, err := slow.Next(t.Context())
		require.ErrorIs(t, err, ErrCompacted)
	}
	_, err := r.WatchFrom(1)
	require.ErrorIs(t, err, ErrCompacted)
	require.LessOrEqual(t, len(r.window.nodes), 12)

	// One command above the limit must not cut off a reader that has read all earlier changes.
	var big []string
	for i := range 25 {
		big = append(big, fmt.Sprintf("c-%d", i))
	}
	r.register(edge1, 12, big...) // 13
	require.Equal(t, 25, next(reader))
	require.Equal(t, 25, next(mustWatchFrom(t, r.Machine, 12)))
	_, err = r.WatchFrom(11)
	require.ErrorIs(t, err, ErrCompacted)
	r.register(edge1, 13, "d") // 14
	require.Equal(t, 1, next(reader))
	require.Equal(t, 25, next(mustWatchFrom(t, r.Machine, 12)), "the newest ten, and the command they begin in")
	for i := range 10 {
		r.register(edge1, uint64(i+14), fmt.Sprintf("e-%d", i))
	}
	_, err = r.WatchFrom(12)
	require.ErrorIs(t, err, ErrCompacted)
	require.Equal(t, 1, next(mustWatchFrom(t, r.Machine, 13)))
}

func TestWindow_ManyCommands_DropsOldOnes(t *testing.T) {
	t.Parallel()
	w := newWindow(0)
	w.limit = 100
	for i := range uint64(10_000) {
		w.append(Changes{Index: i + 1, Changes: make([]Change, 1+i%3)})
		require.LessOrEqual(t, len(w.nodes), 102)
	}
	require.Less(t, cap(w.nodes), 1_000)
}

// A few large services must count as much as many small ones.
func TestWindow_LargeServices_AreLimitedByBytes(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	r.window.limitBytes = 100_000
	_, slow := r.Watch()
	for i := range 50 {
		r.do(opRegister(&rollcallv1.RegisterOperation{
			Fence: writer(edge1, 1, uint64(i+1), 1), Services: [][]byte{service("a", strings.Repeat("x", 10_000), i)},
		}))
	}
	require.LessOrEqual(t, len(r.window.nodes), 8, "20 kB each, before and after")
	_, err := slow.Next(t.Context())
	require.ErrorIs(t, err, ErrCompacted)
	require.NotNil(t, mustWatchFrom(t, r.Machine, r.index-3))
}

// A reader that starts during writes must see every change after its state exactly once and in order.
func TestWatch_DuringWrites_MissesNoChange(t *testing.T) {
	t.Parallel()
	const last = 2_000
	m := New()
	m.Apply(&raft.Log{Index: 1, Data: encode(opEstablish("n-1", 0))})

	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			// The first reader reads everything; the others start repeatedly, every second one by resuming.
			stretch := uint64(last)
			if w > 0 {
				stretch = 30
			}
			for {
				state, feed := m.Watch()
				from := state.Index()
				if w%2 == 1 {
					var err error
					if feed, err = m.WatchFrom(from); err != nil {
						t.Errorf("resume from %d: %v", from, err)
						return
					}
				}
				view := make(map[string]*Entry)
				for e := range state.All() {
					view[e.ID] = e
				}
				for until := min(from+stretch, last); from < until; {
					c, err := feed.Next(t.Context())
					if err != nil || c.Index <= from {
						t.Errorf("after %d comes %d: %v", from, c.Index, err)
						return
					}
					if now := m.State().Index(); now < c.Index {
						t.Errorf("change %d is announced at state %d", c.Index, now)
						return
					}
					for _, ch := range c.Changes {
						if !step(view, ch) {
							t.Errorf("at %d: Before differs from the reader's entry: %s", c.Index, dumpChanges(c))
							return
						}
					}
					from = c.Index
				}
				if from == last {
					if end := slices.Collect(m.State().All()); len(end) != len(view) {
						t.Errorf("the reader has %d services, the directory %d", len(view), len(end))
					}
					return
				}
			}
		})
	}
	wg.Go(func() {
		for index := uint64(1); index < last; {
			var batch []*raft.Log
			for range min(1+index%3, last-index) {
				index++
				id := fmt.Sprintf("a-%d", index%17)
				batch = append(batch, &raft.Log{Index: index, Data: encode(opRegister(&rollcallv1.RegisterOperation{
					Fence: writer(edge1, 1, index, 1), Services: [][]byte{service(id, index), service("b-"+id, index)}, FullSet: index%5 == 0,
				}))})
			}
			m.ApplyBatch(batch)
		}
	})
	wg.Wait()
	checkInvariants(t, m)
}

// step applies a change to a reader's view of the directory. It reports whether the view matched the change's Before.
func step(view map[string]*Entry, c Change) bool {
	id := ""
	if c.Before != nil {
		id = c.Before.ID
	} else {
		id = c.After.ID
	}
	if view[id] != c.Before {
		return false
	}
	if c.After == nil {
		delete(view, id)
	} else {
		view[id] = c.After
	}
	return true
}
