package dispatch

import "slices"

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
