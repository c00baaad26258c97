// Package health checks services over the network and says which are up.
//
// A [Checker] holds a set of targets. A new one is checked at once, at most 256 such checks at a time; from then
// on each is checked at its own phase of the interval, a hash of its id, so that ten thousand checks spread over
// the interval instead of bursting, and a new leader keeps the old one's cadence.
//
// # Verdicts
//
// A target is unknown until it has been checked at its present URL. One success makes it up; from down it takes
// Rise of them in a row. Fall failures in a row make it down. Where more than one is needed, the next probe
// follows after 250 ms instead of at the next phase. A check is one request: nothing is tried again within it,
// except when a connection kept from an earlier check brings no head of an answer: then it was closed in between, and
// the request is sent again on a new one.
//
// # A checker that is late
//
// A process that was frozen or starved finds all its deadlines passed at once, which must not look like a dead
// fleet. A failed check is therefore void, and says nothing about its target, when
//
//   - it ended more than 50 ms after its deadline,
//   - the checker's own timer fired more than 50 ms late while it ran,
//   - with many checks in flight, this process's goroutines had to wait that long for a processor, or
//   - the local machine refused it the means: file descriptors, ports, buffers.
//
// A void check is repeated soon, with growing gaps and at most 1,000 repeats a second overall. A refused
// connection, an HTTP status and an answer of gRPC's health service are never void: they are the service's word,
// however late it is read. As long as a checker stays that late it removes no hanging service, only refusing ones.
//
// # More checks than can be made
//
// So that it does not come to that, fewer checks are taken on, down to 64 at a time, while goroutines wait long for
// a processor: more would only make all of them slower, and everything else in the process too. Checks then begin
// late. Each that is due is made once, in the order in which they fell due, and takes turns with first checks and those
// asked for: everybody is checked more seldom, and nobody not at all. The log says when that begins and when it ends,
// and metrics show how late checks are.
//
// # Not guaranteed
//
// A failure of the checker's own network looks like a failure of what is behind it, unless it shows as one of the
// local faults above. The director's guard is for that.
package health
