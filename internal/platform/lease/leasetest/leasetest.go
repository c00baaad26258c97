package leasetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/lease"
)

// Subject is a table in a database of its own.
type Subject struct {
	DB      *pgxpool.Pool
	Table   lease.Table
	Row     []any // the key of a row for which no process was elected yet
	Other   []any // the key of another such row
	Missing []any // a key without a row
}

// Run runs the checks. open is called for each of them.
func Run(t *testing.T, open func(*testing.T) Subject) {
	for _, check := range []struct {
		name string
		run  func(*kit)
	}{
		{"Elect_Free_BeginsAnEpoch", electFree},
		{"Elect_Held_Fails", electHeld},
		{"Elect_SameHolder_BeginsAnEpoch", electAgain},
		{"Elect_Expired_TakesOver", electExpired},
		{"Elect_Concurrent_ElectsOne", electConcurrent},
		{"Elect_StoodBack_WaitsUntilFree", electStoodBack},
		{"Elect_NoRow_Fails", electNoRow},
		{"Elect_AdvisoryLockTaken_Fails", electAdvisory},
		{"Renew_OwnEpoch_MovesTheEnd", renewOwn},
		{"Renew_ExpiredUntouched_KeepsTheEpoch", renewExpired},
		{"Renew_AnotherElection_Fails", renewLost},
		{"Release_FreesAtOnce", release},
		{"Release_AnotherHolds_ChangesNothing", releaseForeign},
		{"Rows_AreIndependent", rowsIndependent},
		{"Clock_IsTheDatabases", databaseClock},
		{"Lease_RoundFailed_IsNotRenewed", leaseFailed},
		{"Lease_NoSuccessForATerm_StandsBack", leaseStandsBack},
		{"Lease_StandBackEnds", leaseStandBackEnds},
		{"Lease_TakenByAnother_IsLost", leaseTaken},
		{"Lease_Released_IsTakenAtOnce", leaseReleased},
		{"Lease_StatementFails_IsElectedAgain", leaseStatementFails},
		{"Lease_Dropped_IsElectedAgain", leaseDropped},
		{"Lease_StoppedDuringClaim_IsReleased", leaseStopped},
	} {
		t.Run(check.name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			check.run(&kit{T: t, Subject: s, row: s.Table.Row(s.DB, s.Row...)})
		})
	}
}

// term is longer than any check takes.
const term = time.Hour

// kit is the state of one check.
type kit struct {
	*testing.T
	Subject

	row lease.Row
}

// elect requires that holder is elected, and returns the epoch.
func (k *kit) elect(row lease.Row, holder string, free time.Duration) int64 {
	k.Helper()
	epoch, elected, err := row.Elect(k.Context(), holder, term, free)
	require.NoError(k, err)
	require.True(k, elected, holder)
	return epoch
}

// refuse requires that holder is not elected.
func (k *kit) refuse(row lease.Row, holder string, free time.Duration) {
	k.Helper()
	_, elected, err := row.Elect(k.Context(), holder, term, free)
	require.NoError(k, err)
	require.False(k, elected, holder)
}

// renew renews the lease of an election.
func (k *kit) renew(holder string, epoch int64) bool {
	k.Helper()
	renewed, err := k.row.Renew(k.Context(), holder, epoch, term)
	require.NoError(k, err)
	return renewed
}

// current returns the row's state.
func (k *kit) current() (epoch int64, held bool) {
	k.Helper()
	epoch, held, err := k.row.Current(k.Context())
	require.NoError(k, err)
	return epoch, held
}

// endedSince sets the end of the lease to a time ago; a negative one is ahead.
func (k *kit) endedSince(age time.Duration) {
	k.Helper()
	var where []string
	for i, column := range k.Table.Key {
		where = append(where, fmt.Sprintf("%s = $%d", column, i+2))
	}
	tag, err := k.DB.Exec(k.Context(), fmt.Sprintf(`UPDATE %s SET %s = now() - $1::interval WHERE %s`, k.Table.Name, k.Table.Until,
		strings.Join(where, " AND ")), append([]any{age}, k.Row...)...)
	require.NoError(k, err)
	require.EqualValues(k, 1, tag.RowsAffected())
}

// remaining returns how long the lease lasts, by the database's clock.
func (k *kit) remaining() (d time.Duration) {
	k.Helper()
	var where []string
	for i, column := range k.Table.Key {
		where = append(where, fmt.Sprintf("%s = $%d", column, i+1))
	}
	err := k.DB.QueryRow(k.Context(), fmt.Sprintf(`SELECT %s - now() FROM %s WHERE %s`, k.Table.Until, k.Table.Name,
		strings.Join(where, " AND ")), k.Row...).Scan(&d)
	require.NoError(k, err)
	return d
}

// process returns the lease of a process.
func (k *kit) process(name string) *lease.Lease {
	return lease.New(lease.Config{Row: k.row, Holder: name, Term: term, Interval: time.Minute})
}

// claim claims the lease, and returns whether the process was elected and whether it holds the lease.
func (k *kit) claim(l *lease.Lease) (elected, held bool) {
	k.Helper()
	elected, err := l.Claim(k.Context())
	require.NoError(k, err)
	return elected, l.Held()
}

func electFree(k *kit) {
	epoch, held := k.current()
	require.Zero(k, epoch)
	require.False(k, held)
	require.EqualValues(k, 1, k.elect(k.row, "a", 0))
	epoch, held = k.current()
	require.EqualValues(k, 1, epoch)
	require.True(k, held)
	require.InDelta(k, term, k.remaining(), float64(term/10))
}

func electHeld(k *kit) {
	k.elect(k.row, "a", 0)
	k.refuse(k.row, "b", 0)
	epoch, held := k.current()
	require.EqualValues(k, 1, epoch, "an election that fails begins no epoch")
	require.True(k, held)
	require.True(k, k.renew("a", 1))
}

// The answer to an election may be lost, so that the process elects itself again.
func electAgain(k *kit) {
	require.EqualValues(k, 1, k.elect(k.row, "a", 0))
	require.EqualValues(k, 2, k.elect(k.row, "a", 0))
	require.False(k, k.renew("a", 1))
	require.True(k, k.renew("a", 2))
}

func electExpired(k *kit) {
	k.elect(k.row, "a", 0)
	k.endedSince(time.Second)
	epoch, held := k.current()
	require.EqualValues(k, 1, epoch)
	require.False(k, held)
	require.EqualValues(k, 2, k.elect(k.row, "b", 0))
	k.refuse(k.row, "a", 0)
}

// A table without an advisory lock has nothing to check.
func electAdvisory(k *kit) {
	if k.Table.Advisory == 0 {
		return
	}
	tx, err := k.DB.Begin(k.Context())
	require.NoError(k, err)
	_, err = tx.Exec(k.Context(), "SELECT pg_advisory_xact_lock($1, $2)", k.Table.Advisory, k.Row[0])
	require.NoError(k, err)
	k.refuse(k.row, "a", 0)
	require.EqualValues(k, 1, k.elect(k.Table.Row(k.DB, k.Other...), "a", 0), "the lock is of one row")
	require.NoError(k, tx.Rollback(k.Context()))
	require.EqualValues(k, 1, k.elect(k.row, "a", 0))
}

func electConcurrent(k *kit) {
	const processes = 8
	var wg sync.WaitGroup
	var mu sync.Mutex
	elected := 0
	for i := range processes {
		wg.Go(func() {
			_, ok, err := k.row.Elect(k.Context(), fmt.Sprint("process ", i), term, 0)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				k.Error(err)
			} else if ok {
				elected++
			}
		})
	}
	wg.Wait()
	require.Equal(k, 1, elected)
}

func electStoodBack(k *kit) {
	k.elect(k.row, "a", 0)
	k.refuse(k.row, "a", time.Hour) // not even its own
	k.endedSince(50 * time.Minute)
	k.refuse(k.row, "a", time.Hour)
	k.endedSince(70 * time.Minute)
	k.elect(k.row, "a", time.Hour)
	k.endedSince(time.Second)
	k.elect(k.row, "b", 0) // it did not stand back
}

func electNoRow(k *kit) {
	row := k.Table.Row(k.DB, k.Missing...)
	k.refuse(row, "a", 0)
	epoch, held, err := row.Current(k.Context())
	require.NoError(k, err)
	require.Zero(k, epoch)
	require.False(k, held)
}

func renewOwn(k *kit) {
	epoch := k.elect(k.row, "a", 0)
	k.endedSince(-time.Minute)
	require.False(k, k.renew("b", epoch))
	require.False(k, k.renew("a", epoch+1))
	require.Less(k, k.remaining(), term/2)
	require.True(k, k.renew("a", epoch))
	require.InDelta(k, term, k.remaining(), float64(term/10))
	now, held := k.current()
	require.Equal(k, epoch, now)
	require.True(k, held)
}

// A round took longer than the term, and no other process wanted the lease.
func renewExpired(k *kit) {
	epoch := k.elect(k.row, "a", 0)
	k.endedSince(time.Second)
	require.True(k, k.renew("a", epoch))
	k.refuse(k.row, "b", 0)
}

func renewLost(k *kit) {
	epoch := k.elect(k.row, "a", 0)
	k.endedSince(time.Second)
	k.elect(k.row, "b", 0)
	k.endedSince(time.Second)
	require.False(k, k.renew("a", epoch))
	_, held := k.current()
	require.False(k, held, "a renewal of a former epoch changes nothing")
}

func release(k *kit) {
	epoch := k.elect(k.row, "a", 0)
	require.NoError(k, k.row.Release(k.Context(), "a"))
	_, held := k.current()
	require.False(k, held)
	require.False(k, k.renew("a", epoch), "it is released")
	k.refuse(k.row, "a", time.Minute) // it is free since a moment ago
	require.EqualValues(k, 2, k.elect(k.row, "b", 0))
}

func releaseForeign(k *kit) {
	epoch := k.elect(k.row, "a", 0)
	require.NoError(k, k.row.Release(k.Context(), "b"))
	k.refuse(k.row, "b", 0)
	require.True(k, k.renew("a", epoch))
}

func rowsIndependent(k *kit) {
	other := k.Table.Row(k.DB, k.Other...)
	k.elect(k.row, "a", 0)
	require.EqualValues(k, 1, k.elect(other, "b", 0))
	require.NoError(k, other.Release(k.Context(), "b"))
	_, held := k.current()
	require.True(k, held)
	k.elect(other, "a", 0)
	require.NoError(k, other.Release(k.Context(), "a"))
	_, held = k.current()
	require.True(k, held, "a process may hold several rows")
	renewed, err := other.Renew(k.Context(), "a", 1, term)
	require.NoError(k, err)
	require.False(k, renewed)
}

// inBubble runs do in a bubble, whose clock starts in the year 2000 and moves only while do waits. The kit's pool is of the bubble.
func (k *kit) inBubble(do func(k *kit)) {
	config := k.DB.Config()
	synctest.Test(k.T, func(t *testing.T) {
		db, err := pgxpool.NewWithConfig(t.Context(), config)
		require.NoError(t, err)
		defer db.Close()
		s := k.Subject
		s.DB = db
		do(&kit{T: t, Subject: s, row: s.Table.Row(db, s.Row...)})
	})
}

// A process with a wrong clock takes no lease early, and its own lease lasts.
func databaseClock(k *kit) {
	k.inBubble(func(k *kit) {
		epoch := k.elect(k.row, "a", 0)
		require.InDelta(k, term, k.remaining(), float64(term/10))
		<-time.After(2 * term)
		k.refuse(k.row, "b", 0)
		require.True(k, k.renew("a", epoch))
		require.InDelta(k, term, k.remaining(), float64(term/10))
	})
}

func leaseFailed(k *kit) {
	l := k.process("a")
	elected, held := k.claim(l)
	require.True(k, elected && held)
	require.EqualValues(k, 1, l.Epoch())
	require.True(k, l.Succeeded().IsZero())
	require.True(k, l.Record(nil))
	require.False(k, l.Succeeded().IsZero())
	k.endedSince(-time.Minute)
	require.True(k, l.Record(errors.New("the endpoint is down")), "a round has succeeded within the term")
	elected, held = k.claim(l)
	require.False(k, elected)
	require.True(k, held)
	require.Less(k, k.remaining(), term/2, "a failed round renewed the lease")
	require.True(k, l.Record(nil))
	elected, held = k.claim(l)
	require.False(k, elected)
	require.True(k, held)
	require.Greater(k, k.remaining(), term/2)
	require.EqualValues(k, 1, l.Epoch())
}

func leaseStandsBack(k *kit) {
	k.inBubble(func(k *kit) {
		l, other := k.process("a"), k.process("b")
		k.claim(l)
		require.False(k, l.Record(errors.New("no endpoint")), "it was just elected, and had its round")
		require.NoError(k, l.StandBack(k.Context()))
		require.False(k, l.Held())
		_, held := k.claim(l)
		require.False(k, held, "others go first")
		_, held = k.claim(other)
		require.True(k, held, "it does not wait for a term")
		require.True(k, other.Record(nil))
		<-time.After(term - time.Second)
		require.True(k, other.Record(errors.New("no endpoint")))
		<-time.After(2 * time.Second)
		require.False(k, other.Record(errors.New("no endpoint")), "no round has succeeded for a term")
		require.NoError(k, other.StandBack(k.Context()))

		// No process wants the lease for three intervals.
		k.endedSince(2 * time.Minute)
		_, held = k.claim(l)
		require.False(k, held)
		k.endedSince(4 * time.Minute)
		elected, held := k.claim(l)
		require.True(k, elected && held)
		require.True(k, l.Trial())
		require.True(k, l.Record(nil))
		require.False(k, l.Trial())
		require.NoError(k, l.Release(k.Context()))
		_, held = k.claim(l)
		require.True(k, held, "its success ended the stand-back")
		require.False(k, l.Trial())
		require.True(k, l.Succeeded().IsZero(), "no round has succeeded since this election")
	})
}

func leaseStandBackEnds(k *kit) {
	k.inBubble(func(k *kit) {
		l := k.process("a")
		k.claim(l)
		require.NoError(k, l.StandBack(k.Context()))
		<-time.After(3*term - time.Second)
		_, held := k.claim(l)
		require.False(k, held)
		<-time.After(2 * time.Second)
		_, held = k.claim(l)
		require.True(k, held)
		require.False(k, l.Trial())
	})
}

// The process was paused for longer than the term.
func leaseTaken(k *kit) {
	l, other := k.process("a"), k.process("b")
	k.claim(l)
	l.Record(nil)
	k.endedSince(time.Second)
	elected, _ := k.claim(other)
	require.True(k, elected)
	elected, held := k.claim(l)
	require.False(k, elected || held)
	require.NoError(k, k.row.Release(k.Context(), "a"), "the lease of another is not released")
	_, held = k.claim(other)
	require.True(k, held)
	require.NoError(k, other.Release(k.Context()))
	elected, held = k.claim(l)
	require.True(k, elected && held)
	require.EqualValues(k, 3, l.Epoch())
	require.False(k, l.Record(errors.New("no endpoint")), "successes before the election do not count")
}

func leaseReleased(k *kit) {
	l, other := k.process("a"), k.process("b")
	k.claim(l)
	l.Record(nil)
	_, held := k.claim(other)
	require.False(k, held)
	ctx, cancel := context.WithCancel(k.Context())
	cancel()
	require.NoError(k, l.Release(ctx), "a process that was told to stop releases the lease")
	require.False(k, l.Held())
	_, held = k.claim(other)
	require.True(k, held)
}

// The process cannot tell whether a statement that failed was executed.
func leaseStatementFails(k *kit) {
	config := k.DB.Config()
	db, err := pgxpool.NewWithConfig(k.Context(), config)
	require.NoError(k, err)
	k.row = k.Table.Row(db, k.Row...)
	l := k.process("a")
	k.claim(l)
	db.Close()
	_, err = l.Claim(k.Context())
	require.Error(k, err)
	require.ErrorContains(k, err, "renew the lease "+k.Table.Name)
	require.False(k, l.Held())
	_, err = l.Claim(k.Context())
	require.ErrorContains(k, err, "take the lease "+k.Table.Name)
	require.ErrorContains(k, l.Release(k.Context()), "release the lease "+k.Table.Name)
	_, _, err = k.row.Current(k.Context())
	require.ErrorContains(k, err, "read the lease "+k.Table.Name)
}

func leaseDropped(k *kit) {
	l := k.process("a")
	k.claim(l)
	l.Drop()
	require.False(k, l.Held())
	_, held := k.current()
	require.True(k, held, "the row is unchanged")
	elected, held := k.claim(l)
	require.True(k, elected && held)
	require.EqualValues(k, 2, l.Epoch())
}

// The process is told to stop while the server executes its claim. The claim must not be executed after the release.
func leaseStopped(k *kit) {
	tx, err := k.DB.Begin(k.Context())
	require.NoError(k, err)
	unlock := sync.OnceFunc(func() { require.NoError(k, tx.Rollback(context.WithoutCancel(k.Context()))) })
	defer unlock()
	_, err = tx.Exec(k.Context(), fmt.Sprintf("LOCK TABLE %s IN ACCESS EXCLUSIVE MODE", k.Table.Name))
	require.NoError(k, err)
	l := k.process("a")
	ctx, stop := context.WithCancel(k.Context())
	defer stop()
	type outcome struct {
		elected bool
		err     error
	}
	claimed := make(chan outcome, 1)
	go func() {
		elected, err := l.Claim(ctx)
		claimed <- outcome{elected, err}
	}()
	require.Eventually(k, func() bool {
		var waiting int
		require.NoError(k, tx.QueryRow(k.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&waiting))
		return waiting == 1
	}, time.Minute, 10*time.Millisecond, "the claim does not wait for the row")
	stop()
	select {
	case got := <-claimed:
		require.Fail(k, "the claim did not wait for its statement", "%v", got)
	case <-time.After(100 * time.Millisecond):
	}
	unlock()
	got := <-claimed
	require.NoError(k, got.err)
	require.True(k, got.elected)
	require.NoError(k, l.Release(ctx))
	_, held := k.current()
	require.False(k, held)
}
