package coordinator

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// queuedWrite is a caller of a proposer, and its results.
type queuedWrite struct {
	leave context.CancelFunc
	after int
	err   error
}

// queueWrites returns a proposer and a function that proposes a write of so many bytes. Raft accepts none.
func queueWrites(t *testing.T) (*proposer, func(bytes int) *queuedWrite) {
	p := newProposer(nil, nil, nil, func(uint32) error { return nil })
	p.busy = inFlight
	var callers sync.WaitGroup
	t.Cleanup(callers.Wait)
	return p, func(bytes int) *queuedWrite {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		w := &queuedWrite{leave: cancel}
		op := &rollcallv1.Operation{Kind: &rollcallv1.Operation_Register{
			Register: &rollcallv1.RegisterOperation{Services: [][]byte{make([]byte, bytes)}},
		}}
		callers.Go(func() { _, w.err = p.propose(ctx, op, func() { w.after++ }) })
		synctest.Wait()
		return w
	}
}

// The queue for Raft must be limited in bytes; a write above the limit must be refused at once as certainly not done.
func TestProposer_QueueFull_RefusesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, write := queueWrites(t)
		const size = 4 << 20
		var waiting []*queuedWrite
		for len(waiting) < queueBudget/size-1 {
			w := write(size)
			require.NoError(t, w.err)
			waiting = append(waiting, w)
		}
		refused := write(size)
		require.ErrorIs(t, refused.err, errBusy)
		require.Equal(t, 1, refused.after)

		waiting[3].leave()
		synctest.Wait()
		require.NoError(t, write(size).err, "its place is free")
		require.ErrorIs(t, write(size).err, errBusy)

		require.Len(t, p.nextBatch(), 1, "a large one goes alone")
		require.NoError(t, write(size).err)
	})
}

// Writes whose callers have left must not be proposed, and the callers must get an error that means not done.
func TestProposer_CallersLeft_DoesNotProposeTheirWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, write := queueWrites(t)
		var waiting []*queuedWrite
		for range 10 {
			waiting = append(waiting, write(100))
		}
		for _, i := range []int{0, 4, 9} {
			waiting[i].leave()
			synctest.Wait()
			require.ErrorIs(t, waiting[i].err, errBusy)
			require.ErrorIs(t, waiting[i].err, context.Canceled)
			require.Equal(t, 1, waiting[i].after)
		}
		batch := p.nextBatch()
		require.Len(t, batch, 7)
		for _, pr := range batch {
			require.NotNil(t, pr.op)
		}
		require.Empty(t, p.nextBatch())
		require.Zero(t, p.queued)

		// A write that Raft has may be done.
		waiting[1].leave()
		synctest.Wait()
		var unknown *unknownError
		require.ErrorAs(t, waiting[1].err, &unknown)
		require.Zero(t, waiting[1].after, "Raft is not done with it")
	})
}

// Callers that leave must not retain memory while Raft accepts nothing.
func TestProposer_CallersLeft_FreesTheirMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, write := queueWrites(t)
		stays := write(100)
		for range 1000 {
			write(100).leave()
			synctest.Wait()
		}
		require.LessOrEqual(t, len(p.queue), 3)
		require.Len(t, p.nextBatch(), 1)
		require.NoError(t, stays.err)
	})
}
