// Package health checks services over the network and reports which are up.
//
// The director calls it for every service, and cmd/rollcall for the gateway's local checks. It calls no other package
// of the project.
//
// A [Checker] holds a set of targets. A new target is checked at once, at most 256 such checks at a time. From then on
// each target is checked at its own phase of the interval, a hash of its id. So ten thousand checks spread over the
// interval instead of bursting, and a new leader keeps the old one's phases.
//
// # Verdicts
//
// A target is unknown until it has been checked at its current URL. One success makes an unknown target up. A down
// target needs Rise successes in a row. Fall failures in a row make a target down. If more than one result is needed,
// the next probe follows after 250 ms instead of at the next phase. A check is one request without retries, with one
// exception: if a connection kept from an earlier check returns no response header, it was closed in between, and the
// request is sent again on a new connection.
//
// HTTP checks do not use http.Transport. It takes data that came before the request as the response (in 926 of 1,000
// tries; this code in none), 1.7 times the processor time a check, and 14 KB and two goroutines more per service.
//
// # A checker that is late
//
// A process that was frozen or starved finds all its deadlines passed at once, which must not look like a dead fleet.
// A failed check is therefore void, without any result for its target, if
//
//   - it ended more than 50 ms after its deadline,
//   - the checker's own timer fired more than 50 ms late while it ran,
//   - with many checks in flight, this process's goroutines had to wait that long for a processor, or
//   - the local machine lacked resources for it: file descriptors, ports, buffers.
//
// There is one exception. If this machine has no address for a target (EADDRNOTAVAIL) for two intervals, and checks of
// other targets had results all that time, each further such check is a failure. The target may have an IPv6 address
// alone, and this machine none. The same is reported if the ports towards one target are used up for that long.
//
// A void check is repeated soon, with growing gaps and at most 1,000 repeats a second overall. A refused connection,
// an HTTP status and a response of gRPC's health service are never void, because they come from the service, however
// late they are read. While a checker is that late, it removes only refusing services, not hanging ones.
//
// # More checks than can be made
//
// To prevent this, the checker reduces its concurrency, down to 64 checks at a time, while goroutines wait long for a
// processor. More concurrency would only slow down all checks and the rest of the process. Checks then begin late.
// Each due check runs once, in the order of due times, alternating with first and requested checks. Every target is
// checked less often, but none is skipped. The log reports the beginning and the end of this state, and metrics show
// how late checks are.
//
// # Not guaranteed
//
// A failure of the checker's own network looks like a failure of the services behind it, unless it is one of the local
// faults above. The director's guard handles that.
package health
