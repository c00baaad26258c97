package table

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/queuetest"
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

// A message of a broker may be of another program: one text or time that Postgres rejects must not keep the others from being stored.
func TestBury_FieldsOfAnotherProgram_AreStoredInAValidForm(t *testing.T) {
	t.Parallel()
	letters := &deadLetters{database(t)}
	now := time.Now()
	died := now.Add(-time.Hour)
	far := time.UnixMilli(1 << 62)
	text, late, good := uuid.New(), uuid.New(), uuid.New()
	require.NoError(t, letters.Bury(t.Context(),
		queue.DeadLetter{ID: text, Reason: "a\x00b\xff", EnqueuedAt: now},
		queue.DeadLetter{ID: late, Reason: "late", EnqueuedAt: far, DeadAt: far},
		queue.DeadLetter{ID: good, Reason: "good", EnqueuedAt: died, DeadAt: died},
	))
	found, err := letters.List(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, found, 3)
	all := map[uuid.UUID]queue.DeadLetter{}
	for _, l := range found {
		all[l.ID] = l
	}
	require.Equal(t, "a b\uFFFD", all[text].Reason)
	require.WithinDuration(t, now, all[text].DeadAt, time.Minute)
	require.WithinDuration(t, now, all[late].EnqueuedAt, time.Minute)
	require.WithinDuration(t, now, all[late].DeadAt, time.Minute)
	require.WithinDuration(t, died, all[good].DeadAt, time.Second)
}

// A database that answers may be read-only, such as a standby after a failover.
func TestReady_DatabaseIsReadOnly_Fails(t *testing.T) {
	t.Parallel()
	db := database(t)
	id := uuid.New()
	require.NoError(t, queuetest.Transactions(t.Context(), db, id))
	require.NoError(t, (&deadLetters{db}).Ready(t.Context()))
	cfg := db.Config()
	cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	readOnly, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(readOnly.Close)
	require.ErrorIs(t, (&deadLetters{readOnly}).Ready(t.Context()), ErrDeadLetters)
	found, err := (&deadLetters{db}).List(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, found)
}

func TestCollect_MessageOfADeadLetterQueue_IsStoredIfItsTransactionIs(t *testing.T) {
	t.Parallel()
	db := database(t)
	letters := &deadLetters{db}
	dead, moved := uuid.New(), uuid.New()
	require.NoError(t, queuetest.Transactions(t.Context(), db, dead, moved))
	now := time.Now()
	require.NoError(t, letters.Collect(t.Context(), queue.DeadLetter{ID: dead, Reason: "cannot be sent", EnqueuedAt: now, DeadAt: now}))
	require.NoError(t, letters.Collect(t.Context(), queue.DeadLetter{ID: moved, EnqueuedAt: now}))
	require.ErrorIs(t, letters.Collect(t.Context(), queue.DeadLetter{ID: uuid.New(), EnqueuedAt: now, DeadAt: now}), ErrForeign)
	require.ErrorIs(t, letters.Collect(t.Context(), queue.DeadLetter{ID: uuid.New(), EnqueuedAt: now}), ErrForeign)
	require.ErrorIs(t, letters.Collect(t.Context(), queue.DeadLetter{EnqueuedAt: now}), ErrForeign)
	found, err := letters.List(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, dead, found[0].ID)
	claims := take(t, newClaimant(db, time.Hour), 10)
	require.Len(t, claims, 1)
	require.Equal(t, moved, claims[0].ID)
}
