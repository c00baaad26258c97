package dispatch

import (
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// start is the database's time at the begin of a test.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// submitted returns a transaction that a relayer has accepted as "r0".
func submitted() Transaction {
	return Transaction{
		ID: uuid.Must(uuid.NewV7()), Call: Call{To: common.Address{1}, Value: big.NewInt(5), Data: []byte{1, 2}},
		Status: Submitted, Revision: 3, Attempt: 1, SubmittedAt: start,
		Route:    Route{Relayer: "oz-relayer-0", URL: "http://relayer-0", RelayerID: "pool", Scope: "scope", RelayerTx: "r0"},
		Evidence: Evidence{Now: start.Add(time.Hour)},
	}
}

// reports returns what a relayer reports about one transaction, the oldest first: reorganizations take it out of its block, it may get another
// hash, and it may end.
func reports(r *rand.Rand) []Update {
	all := make([]Update, 1+r.IntN(6))
	hash, revision, at := (*common.Hash)(nil), 0, start
	for i := range all {
		if hash == nil && r.IntN(2) == 0 || r.IntN(4) == 0 {
			hash = &common.Hash{byte(1 + r.IntN(200))}
		}
		revision, at = revision+1+r.IntN(3), at.Add(time.Duration(1+r.IntN(60))*time.Second)
		all[i] = Update{RelayerTx: "r0", Status: []Status{Submitted, Mined}[r.IntN(2)], Hash: hash, Revision: revision, At: at, Reason: string(rune('a' + i))}
	}
	if r.IntN(2) == 0 {
		all[len(all)-1].Status = []Status{Confirmed, Failed, Canceled, Expired}[r.IntN(4)]
	}
	return all
}

// Reports that arrive in any order, and repeatedly, end like those in order.
func TestApply_AnyOrder_EndsAlike(t *testing.T) {
	t.Parallel()
	for name, arrive := range map[string]func(*Update){
		"by revision":          func(*Update) {},
		"by revision, untimed": func(u *Update) { u.At = time.Time{} },
		"by time":              func(u *Update) { u.Revision = 0 },
	} {
		for seed := range uint64(2000) {
			r := rand.New(rand.NewPCG(1, seed))
			all := reports(r)
			for i := range all {
				arrive(&all[i])
			}
			want := submitted()
			for _, u := range all {
				want, _ = want.Apply(u)
			}
			last := all[len(all)-1]
			require.Equal(t, last.Status, want.Status, "%s, seed %d", name, seed)
			got := want
			got.Status, got.Reason, got.Hash, got.Evidence, got.Reported, got.Revision = Submitted, "", nil, Evidence{Now: want.Now}, 0, 3
			disordered := slices.Concat(all, all[:r.IntN(len(all)+1)])
			r.Shuffle(len(disordered), func(i, j int) { disordered[i], disordered[j] = disordered[j], disordered[i] })
			for _, u := range disordered {
				before := got
				var counts bool
				if got, counts = got.Apply(u); !counts {
					require.Equal(t, before, got)
				}
			}
			for _, tx := range []*Transaction{&got, &want} {
				tx.Revision, tx.UpdatedAt = 0, time.Time{} // later ones hide earlier ones
				if last.At.IsZero() {
					tx.ReportedAt = time.Time{}
				}
			}
			require.Equal(t, want, got, "%s, seed %d", name, seed)
		}
	}
}

// An untimed report without a revision moves a transaction forward alone, in any order.
func TestApply_UntimedInAnyOrder_IsTheFarthest(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(2, seed))
		all := []Update{{Status: Submitted}, {Status: Mined}, {Status: []Status{Confirmed, Failed}[r.IntN(2)]}}[:1+r.IntN(3)]
		want := all[len(all)-1].Status
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		tx := submitted()
		for _, u := range all {
			u.RelayerTx = "r0"
			tx, _ = tx.Apply(u)
		}
		require.Equal(t, want, tx.Status, "seed %d", seed)
	}
}

// A reorganization takes mined back, and a relayer that was restored from a backup goes on with lower revisions, after an answer to a check.
func TestApply_GoesBack(t *testing.T) {
	t.Parallel()
	mined, ok := submitted().Apply(Update{RelayerTx: "r0", Status: Mined, Revision: 7})
	require.True(t, ok)
	reorganized, ok := mined.Apply(Update{RelayerTx: "r0", Status: Submitted, Revision: 8})
	require.True(t, ok)
	require.Equal(t, Submitted, reorganized.Status)

	answer := Update{ID: mined.ID, Attempt: 1, RelayerTx: "r0", Status: Submitted, Revision: 2}
	for known, want := range map[int]bool{0: false, 6: false, 7: true} {
		answer.Known = known
		restored, ok := mined.Apply(answer)
		require.Equal(t, want, ok, known)
		require.Equal(t, map[bool]int{false: 7, true: 2}[want], restored.Reported)
	}
}

// A final transaction never changes, whatever comes.
func TestTransaction_Final_NeverChanges(t *testing.T) {
	t.Parallel()
	for _, status := range Statuses {
		if !status.Final() {
			continue
		}
		for seed := range uint64(200) {
			r := rand.New(rand.NewPCG(3, seed))
			final := submitted()
			final.Status, final.Withdrawing, final.Late = status, r.IntN(2) == 0, r.IntN(2) == 0
			hash := common.Hash{7}
			changes := map[string]func() (Transaction, bool){
				"accept":       func() (Transaction, bool) { return final.Accept(r.IntN(3), Route{RelayerTx: "r1"}, &hash) },
				"accept late":  func() (Transaction, bool) { return final.AcceptLate(Route{RelayerTx: "r1"}) },
				"execute late": func() (Transaction, bool) { return final.ExecuteLate(Route{RelayerTx: "r1"}, hash) },
				"retry":        func() (Transaction, bool) { return final.Resolve(Resolution{Retry: true}, "") },
				"fail":         func() (Transaction, bool) { return final.Resolve(Resolution{Failed: true}, "") },
				"executed":     func() (Transaction, bool) { return final.Resolve(Resolution{Executed: &hash}, "") },
				"known as":     func() (Transaction, bool) { return final.Resolve(Resolution{RelayerTx: "r1"}, "") },
			}
			for _, u := range reports(r) {
				u.ID, u.Known = final.ID, r.IntN(9)
				changes["report "+u.Reason] = func() (Transaction, bool) { return final.Apply(u) }
			}
			for name, change := range changes {
				got, ok := change()
				require.False(t, ok, "%s: %s", status, name)
				require.Equal(t, final, got, "%s: %s", status, name)
			}
		}
	}
}

// Relayers accept a transaction late, in any order with all else. Each acceptance is the current submission or evidence. As long as a late one
// is open, the transaction does not end without an execution, and one that a relayer has executed is confirmed.
func TestTransaction_LateAcceptances_NoExecutionIsLost(t *testing.T) {
	t.Parallel()
	ends := map[Status]int{}
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(4, seed))
		tx := submitted().unassigned()
		tx.Status, tx.Attempt = Queued, 0
		requests := map[int]Route{} // by their attempts
		late := map[Route]bool{}    // the open ones
		accept := func(attempt int) {
			by := requests[attempt]
			next, ok := tx.Accept(attempt, by, nil)
			require.Equal(t, ok, next.Revision > tx.Revision)
			if tx = next; !tx.Names(&by) {
				late[by] = true
			}
			delete(requests, attempt)
		}
		for range 30 {
			tx.Now = tx.Now.Add(time.Second)
			tx.Late = len(late) > 0
			before := tx
			switch r.IntN(5) {
			case 0: // a consumer begins, as the store's statement does
				if tx.Status == Queued && !tx.Late {
					tx.Attempt++
					tx.Route = Route{Relayer: string(rune('a' + r.IntN(3)))}
					tx = tx.changed(Submitting, "")
					requests[tx.Attempt] = Route{Relayer: tx.Relayer, RelayerTx: uuid.NewString()}
				}
			case 1: // a consumer believes that the relayer does not have it
				if tx.Status == Submitting {
					tx.Route = Route{}
					tx = tx.changed(Queued, "")
				}
			case 2: // an answer, maybe of a process that was paused
				for attempt := range requests {
					accept(attempt)
					break
				}
			case 3: // the current relayer reports
				if tx.RelayerTx != "" {
					tx, _ = tx.Apply(Update{RelayerTx: tx.RelayerTx, Attempt: tx.Attempt, Status: []Status{Submitted, Mined, Failed, Canceled, Expired}[r.IntN(5)], At: tx.Now})
				}
			case 4: // a queued one goes on at the first late relayer
				for by := range late {
					if next, ok := tx.AcceptLate(by); ok {
						tx = next
						delete(late, by)
					}
					break
				}
			}
			if tx.Status.Final() && !before.Status.Final() {
				require.False(t, before.Late, "seed %d: %s while another relayer may have it", seed, tx.Status)
			}
		}
		for attempt := range requests {
			accept(attempt)
		}
		for by := range late {
			next, ok := tx.ExecuteLate(by, common.Hash{9})
			require.Equal(t, !tx.Status.Final(), ok, "seed %d", seed)
			if tx = next; ok {
				require.Equal(t, Confirmed, tx.Status)
				require.True(t, tx.Names(&by))
				require.Equal(t, common.Hash{9}, *tx.Hash)
			}
		}
		if len(late) > 0 {
			require.True(t, tx.Status.Final(), "seed %d", seed)
		}
		ends[tx.Status]++
	}
	require.Greater(t, ends[Confirmed], 500, "the test covers late executions: %v", ends)
}

// An acceptance counts for the attempt that it answers alone, once, and while the transaction waits for it.
func TestAccept_CurrentAttempt_Counts(t *testing.T) {
	t.Parallel()
	by := Route{Relayer: "oz-relayer-1", RelayerTx: "r1"}
	for _, status := range Statuses {
		for _, attempt := range []int{1, 2, 3} {
			for _, at := range []string{"", "r0"} {
				tx := submitted()
				tx.Status, tx.Attempt, tx.RelayerTx = status, 2, at
				got, ok := tx.Accept(attempt, by, nil)
				require.Equal(t, (status == Submitting || status == Unknown) && attempt == 2 && at == "", ok, "%s, attempt %d, at %q", status, attempt, at)
				require.Equal(t, ok, got.Names(&by))
			}
		}
	}
}

// A relayer's words in any case are statuses; others are none.
func TestStatusAt(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]Status{
		"pending": Submitted, "Sent": Submitted, "submitted": Submitted, "MINED": Mined, "confirmed": Confirmed, "failed": Failed,
		"canceled": Canceled, "cancelled": Canceled, "expired": Expired, //nolint:misspell // some documents spell it so
	} {
		got, ok := StatusAt(word)
		require.True(t, ok, word)
		require.Equal(t, want, got, word)
	}
	for _, word := range []string{"", "queued", "submitting", "unknown", "done"} {
		_, ok := StatusAt(word)
		require.False(t, ok, word)
	}
}
