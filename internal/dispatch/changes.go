package dispatch

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// Evidence is what decides about a change beside the transaction itself. It is read under the row's lock, and zero otherwise. Its times are
// the database's.
type Evidence struct {
	Now time.Time
	// ReportedAt is the time of the last report that counted; zero without one.
	ReportedAt time.Time
	// Ahead is how far the clock of its relayer is ahead.
	Ahead time.Duration
	// Withdrawing reports that its relayer is asked to cancel it, so that another one can have it.
	Withdrawing bool
	// WithdrawnAt is when the reconciler withdrew it last; zero if it has not.
	WithdrawnAt time.Time
	// Late reports that the relayer of a late acceptance may have it.
	Late bool
	// Hashes are those that it has had.
	Hashes []common.Hash
}

// Pool names the set of relayers within which a relayer's id names one transaction.
func (r *Route) Pool() string { return cmp.Or(r.Scope, r.Relayer) }

// Names reports whether two routes name one submission: a relayer's id in one pool.
func (r *Route) Names(other *Route) bool {
	return r.RelayerTx == other.RelayerTx && r.Pool() == other.Pool()
}

// changed returns the transaction after a visible change.
func (t Transaction) changed(status Status, reason string) Transaction {
	t.Status, t.Reason, t.Revision, t.UpdatedAt = status, reason, t.Revision+1, t.Now
	return t
}

// unassigned returns the transaction without its relayer, and what only that one knew of it.
func (t Transaction) unassigned() Transaction {
	t.Route, t.Hash, t.SubmittedAt, t.Reported, t.ReportedAt, t.Withdrawing = Route{}, nil, time.Time{}, 0, time.Time{}, false
	return t
}

// Apply returns the transaction after a relayer's report, and reports whether the report counts. The revision grows only if the report shows
// something new. Otherwise the marks of the last report alone change, because the relayer is not silent.
//
// A report counts if it belongs to the current submission of a transaction that is not final, and is newer than the last one. Reports are
// ordered by the relayer's revision or, if it has none, by their time. One without both only moves a transaction forward. So a later report
// takes back mined, after a reorganization.
//
// A report that names the transaction is the answer to a check, and its time is the consumer's. The time of any other one is the
// relayer's, and is converted. The answer to a check counts also with the revision that is known: the relayer is there, and a transaction
// that became unknown because no relayer answered goes on. It counts with a lower revision, too, if the transaction still has the one that
// it had when the relayer was asked: no other report came meanwhile, so the relayer's own history went back, as after a restore from a
// backup.
//
// A report that contains another call, such as a no-op that took the nonce, is believed if its hash is one that the transaction had before:
// OpenZeppelin's relayer writes the no-op's call before its hash. Otherwise the hash is not the transaction's, and confirmed becomes
// unknown, because only the chain shows which of the two was executed.
//
// A transaction that its relayer was asked to cancel, and has canceled, returns to the queue. The report may have the hash of a no-op: the
// relayer had given the transaction a nonce, which the no-op has used. As long as the relayer of a late acceptance may have the transaction,
// a report that it was not executed makes it unknown.
func (t Transaction) Apply(u Update) (Transaction, bool) {
	if u.RelayerTx == "" || t.RelayerTx != u.RelayerTx || u.Attempt != 0 && u.Attempt != t.Attempt || t.Status.Final() {
		return t, false
	}
	at := u.At
	if u.ID != t.ID {
		at = at.Add(-t.Ahead)
	}
	if u.At.IsZero() || at.After(t.Now) {
		at = t.Now // a clock that is ahead would hide later reports
	}
	reported, status, reason, hash := u.Status, u.Status, u.Reason, u.Hash
	if t.differs(&u) {
		reason, hash = "its relayer reports another call", nil
		if u.Hash != nil {
			reason += ": " + u.Hash.Hex()
		}
		switch reported {
		case Mined:
			status = Submitted
		case Confirmed:
			status = Unknown
		}
	}
	backward := u.Known > 0 && u.Known == t.Reported && 0 < u.Revision && u.Revision < t.Reported
	if !backward && !t.isNews(&u, at, hash) {
		return t, false
	}
	next, withdrawn := t, t.Withdrawing && t.Scope != "" && reported == Canceled
	switch {
	case withdrawn:
		next = t.changed(Queued, "withdrawn from "+t.Relayer).unassigned()
		next.Withdrawn, next.WithdrawnFrom, next.WithdrawnAt = t.Withdrawn+1, t.Scope, t.Now
		return next, true
	case t.Late && reported.Final() && reported != Confirmed:
		status, reason = Unknown, "its relayer reports it as "+string(reported)+", and another relayer has accepted it, too"
	}
	if status != t.Status || reason != t.Reason || hash != nil && !equal(hash, t.Hash) {
		next = t.changed(status, reason)
		next.Hash = cmp.Or(hash, t.Hash)
	}
	if next.Reported = u.Revision; !backward {
		next.Reported = max(u.Revision, t.Reported)
	}
	if at.After(t.ReportedAt) {
		next.ReportedAt = at
	}
	return next, true
}

// isNews reports whether a report is newer than the last one. at is its time by the database's clock, and hash the transaction's in it.
func (t *Transaction) isNews(u *Update, at time.Time, hash *common.Hash) bool {
	rank := cmp.Compare(u.Status.rank(), t.Status.rank())
	switch {
	case u.Revision > 0 && (t.Reported > 0 || u.At.IsZero()):
		return u.Revision > t.Reported || u.Revision == t.Reported && u.ID == t.ID
	case u.At.IsZero():
		return rank > 0 || rank == 0 && hash != nil && t.Hash == nil
	default:
		return cmp.Or(at.Compare(t.ReportedAt), rank) > 0
	}
}

// Differs reports whether a report contains another call than the transaction's. Its hash may be the transaction's nevertheless.
func (t *Transaction) Differs(u *Update) bool {
	reported, own := u.Digest(), t.Digest()
	return reported != nil && !bytes.Equal(reported, own[:])
}

// differs reports whether a report is of another call, and has no hash that the transaction has had.
func (t *Transaction) differs(u *Update) bool {
	return t.Differs(u) && (u.Hash == nil || !equal(u.Hash, t.Hash) && !slices.Contains(t.Hashes, *u.Hash))
}

func equal(a, b *common.Hash) bool { return a == b || a != nil && b != nil && *a == *b }

// CompareUpdates orders reports of one transaction that came together: only the greatest one counts.
func CompareUpdates(a, b Update) int {
	return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.At.Compare(b.At), cmp.Compare(a.Status.rank(), b.Status.rank()))
}

// Accept returns the transaction after a relayer has accepted it in an attempt, and reports whether the acceptance counts. Within the
// attempt a relayer's answer stays true, whatever became of the lease, and the first one counts. One that does not count, and does not name
// the current submission, is a late acceptance: its relayer may execute the transaction.
func (t Transaction) Accept(attempt int, by Route, hash *common.Hash) (Transaction, bool) {
	if t.RelayerTx != "" || t.Attempt != attempt || t.Status != Submitting && t.Status != Unknown {
		return t, false
	}
	t = t.changed(Submitted, "")
	t.Route, t.Hash, t.SubmittedAt = by, hash, t.Now
	return t, true
}

// AcceptLate returns the transaction after it was given to the relayer of a late acceptance, because no other one has it. It reports whether
// that is so.
func (t Transaction) AcceptLate(by Route) (Transaction, bool) {
	if t.Status != Queued {
		return t, false
	}
	t = t.changed(Submitted, "accepted late")
	t.Route, t.Attempt, t.SubmittedAt = by, t.Attempt+1, t.Now
	return t, true
}

// ExecuteLate returns the transaction after the relayer of a late acceptance has executed it, and reports whether that changes it. It becomes
// confirmed unless it is final, whatever another relayer has of it.
func (t Transaction) ExecuteLate(by Route, hash common.Hash) (Transaction, bool) {
	if t.Status.Final() {
		return t, false
	}
	reason := "executed by " + by.Relayer + " as " + by.RelayerTx
	switch {
	case t.RelayerTx != "":
		reason += "; " + t.Relayer + " has it as " + t.RelayerTx + ", and may execute it again"
	case t.Relayer != "":
		reason += "; " + t.Relayer + " may have it, and may execute it again"
	}
	t = t.changed(Confirmed, reason)
	t.Route, t.Hash, t.Withdrawing = by, &hash, false
	return t, true
}

// Resolution is an operator's decision about a transaction that is not final. One member is set.
type Resolution struct {
	// Retry queues it again, because no relayer has it. Its idempotency key stays the same unless a relayer had accepted it.
	Retry bool
	// Failed ends it: it is not to be sent any more.
	Failed bool
	// Executed is the hash under which the chain has executed it.
	Executed *common.Hash
	// RelayerTx is the id under which the relayer of its row has it.
	RelayerTx string
}

// Resolve returns the transaction after an operator's decision, and reports whether the decision fits: a queued one cannot be queued again,
// and RelayerTx needs a relayer that has not given it an id yet.
func (t Transaction) Resolve(d Resolution, reason string) (Transaction, bool) {
	if t.Status.Final() || t.Status == Queued && (d.Retry || d.RelayerTx != "") || t.RelayerTx != "" && d.RelayerTx != "" {
		return t, false
	}
	switch {
	case d.Retry:
		had := t.RelayerTx != ""
		if t = t.changed(Queued, reason).unassigned(); had {
			t.Withdrawn++
		}
	case d.Failed:
		t = t.changed(Failed, reason)
	case d.Executed != nil:
		t = t.changed(Confirmed, reason)
		t.Hash = d.Executed
	default:
		t = t.changed(Submitted, reason)
		t.RelayerTx, t.Hash, t.SubmittedAt = d.RelayerTx, nil, t.Now
	}
	t.Withdrawing = false
	return t, true
}
