package dispatch

import (
	"slices"
	"strings"
)

// Status is the status of a transaction. The package's documentation describes each.
type Status string

// The statuses.
const (
	Queued     Status = "queued"
	Submitting Status = "submitting"
	Unknown    Status = "unknown"
	Submitted  Status = "submitted"
	Mined      Status = "mined"
	Confirmed  Status = "confirmed"
	Failed     Status = "failed"
	Canceled   Status = "canceled"
	Expired    Status = "expired"
)

// Statuses are all statuses, in the order in which a transaction may go through them.
var Statuses = []Status{Queued, Submitting, Unknown, Submitted, Mined, Confirmed, Failed, Canceled, Expired}

// Valid reports whether s is one of the statuses.
func (s Status) Valid() bool { return slices.Contains(Statuses, s) }

// Final reports whether the status never changes.
func (s Status) Final() bool {
	switch s {
	case Confirmed, Failed, Canceled, Expired:
		return true
	default:
		return false
	}
}

// AtRelayer reports whether a relayer has accepted the transaction and has not finished it.
func (s Status) AtRelayer() bool { return s == Submitted || s == Mined }

// rank orders statuses for reports without a revision and of the same time.
func (s Status) rank() int {
	switch s {
	case Unknown:
		return 0
	case Submitted:
		return 1
	case Mined:
		return 2
	default:
		return 3
	}
}

// StatusAt returns the status for a relayer's word in any case, and reports whether it is one of a relayer's statuses. A relayer that has
// accepted a transaction reports it as pending and sent first.
func StatusAt(relayer string) (s Status, ok bool) {
	switch s = Status(strings.ToLower(relayer)); s {
	case "pending", "sent":
		s = Submitted
	case "cancelled": //nolint:misspell // some documents spell it so
		s = Canceled
	}
	return s, s.AtRelayer() || s.Final()
}
