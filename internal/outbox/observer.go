package outbox

import "time"

// Observer receives what a process does with the entries of a table, for the domain's metrics. Its methods are called concurrently,
// and must not block.
type Observer interface {
	// Began reports that a handler starts.
	Began(w Work)
	// Handled reports the result of a handler. A result may be stored later, or not at all if the lease was lost.
	Handled(w Work, r Result, took time.Duration)
	// Died reports that an entry became dead.
	Died(w Work, reason string)
	// Sent reports that a broker took the id of an entry of a lane that was inserted some time ago.
	Sent(lane string, age time.Duration)
	// Available reports whether a part of the process reaches its backend. The parts are worker, receiver, dispatcher, broker and
	// notifier.
	Available(part string, available bool)
}

// Unobserved is an Observer that does nothing. An Observer may embed it.
type Unobserved struct{}

// Began does nothing.
func (Unobserved) Began(Work) {}

// Handled does nothing.
func (Unobserved) Handled(Work, Result, time.Duration) {}

// Died does nothing.
func (Unobserved) Died(Work, string) {}

// Sent does nothing.
func (Unobserved) Sent(string, time.Duration) {}

// Available does nothing.
func (Unobserved) Available(string, bool) {}
