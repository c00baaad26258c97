package table

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relay/queue"
	"github.com/rollcall-dev/rollcall/internal/relay/queue/queuetest"
)

// A consumer may give a message up before its dispatcher has deleted the entry, and after the transaction was enqueued again.
func TestBury_EntryExists_IsReplacedOnlyIfItIsTheMessages(t *testing.T) {
	t.Parallel()
	db := database(t)
	ids := enqueue(t, db, 3)
	dispatcher := newClaimant(db, time.Hour)
	claims := take(t, dispatcher, 10)
	require.Len(t, claims, 3)
	require.NoError(t, queuetest.Enqueue(t.Context(), db, ids[1])) // while its message is handled
	letters := &deadLetters{db}
	var buried []queue.DeadLetter
	for _, c := range claims {
		l := queue.DeadLetter{ID: c.ID, Attempts: 7, Reason: "cannot be sent", EnqueuedAt: time.UnixMilli(c.EnqueuedAt.UnixMilli())}
		if c.ID == ids[2] { // of an earlier entry, and this one is being sent
			l.EnqueuedAt = l.EnqueuedAt.Add(-time.Minute)
		}
		buried = append(buried, l, l) // a broker may deliver a message twice
	}
	fresh := uuid.New()
	buried = append(buried, queue.DeadLetter{ID: fresh, Attempts: 1, Reason: "of another program"})
	require.NoError(t, letters.Bury(t.Context(), buried...))

	list := func() map[uuid.UUID]queue.DeadLetter {
		t.Helper()
		found, err := letters.List(t.Context(), 10)
		require.NoError(t, err)
		all := map[uuid.UUID]queue.DeadLetter{}
		for _, l := range found {
			all[l.ID] = l
		}
		return all
	}
	var sent []result
	for _, c := range claims {
		sent = append(sent, result{claim: c, outcome: done})
	}
	take(t, dispatcher, 0, sent...)
	all := list()
	require.Len(t, all, 2)
	require.Equal(t, 7, all[ids[0]].Attempts)
	require.Equal(t, "cannot be sent", all[ids[0]].Reason)
	require.WithinDuration(t, time.Now(), all[fresh].EnqueuedAt, time.Minute)
	require.Equal(t, ids[1], take(t, dispatcher, 10)[0].ID, "the entry that was enqueued again is sent")

	// A dead letter keeps its reason, and no message returns it.
	require.NoError(t, letters.Bury(t.Context(), queue.DeadLetter{ID: ids[0], Reason: "again", EnqueuedAt: all[ids[0]].EnqueuedAt}))
	require.NoError(t, letters.Return(t.Context(), ids[0], ids[0]))
	require.Equal(t, all, list())
	require.NoError(t, letters.Return(t.Context(), ids[2]))
	require.Equal(t, ids[2], take(t, dispatcher, 10)[0].ID)
}
