package evm

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// methodLogInterval bounds how often the log reports that an endpoint fails one method.
const methodLogInterval = time.Minute

// methodHealth records how an endpoint answers one method. A half-broken endpoint fails some methods and answers
// others. So a success of one method proves nothing about another.
type methodHealth struct {
	failures int       // in a row
	until    time.Time // other endpoints are preferred until then
	limited  bool      // the endpoint is rate-limited: it is not asked until then
	reason   string    // of the last failure
	logged   time.Time // when the log last reported a failure
}

// IsNoAnswer reports whether an error is an endpoint's failure to answer. Such an error carries no information about
// the chain or the call, and another endpoint may answer.
func IsNoAnswer(err error) bool {
	if _, ok := errors.AsType[*TransportError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*WrongChainError](err); ok {
		return true
	}
	if e, ok := errors.AsType[*RPCError](err); ok && e.Fault {
		return true
	}
	return isRateLimit(err)
}

// tracked reports whether health is kept for a method. Callers of [Client.Call] choose methods freely. Methods without
// a metrics label are not kept, which limits the size of the map.
func tracked(key string) bool {
	method, _, _ := strings.Cut(key, " ")
	return methodLabels[method]
}

// recordAnswers decodes the results, marks the errors among the answers that are faults of the endpoint, and records the
// health of each method.
func (ep *endpoint) recordAnswers(calls []call, answers []answer) {
	var failed, well map[string]error
	fails := func(method string, err error) {
		if failed == nil {
			failed = map[string]error{}
		}
		failed[method] = err
	}
	for i := range answers {
		a, method := &answers[i], calls[i].key()
		if a.err == nil && calls[i].decode != nil {
			if err := calls[i].decode(a.result); err != nil {
				a.err = ep.transportError(true, fmt.Errorf("result of %s: %w", calls[i].method, err))
				fails(method, a.err)
				continue
			}
		}
		if errors.Is(a.err, errMissing) {
			continue
		}
		e, ok := errors.AsType[*RPCError](a.err)
		if ok && batchTooBig(e) {
			continue
		}
		if ok && !calls[i].isAnswer(e) {
			e.Fault = true
			fails(method, e)
			continue
		}
		if well == nil {
			well = map[string]error{}
		}
		well[method] = nil
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	for method, err := range failed {
		ep.methodFailed(method, reasonOf(err), false)
	}
	if len(ep.methods) == 0 {
		return
	}
	for method := range well {
		if failed[method] == nil {
			ep.methodAnswers(method)
		}
	}
}

// methodsFailed records that a request with these calls got no answer at all.
func (ep *endpoint) methodsFailed(calls []call, err error) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	for _, method := range methodsOf(calls) {
		ep.methodFailed(method, reasonOf(err), false)
	}
}

// methodFailed makes the client prefer other endpoints for the method for a pause, which grows with each failure.
// Concurrent failures count once. ep.mu is held.
func (ep *endpoint) methodFailed(method, reason string, limited bool) {
	if !tracked(method) {
		return
	}
	m := ep.methods[method]
	if m == nil {
		m = new(methodHealth)
		ep.methods[method] = m
	}
	now := time.Now()
	m.reason = reason
	if now.Before(m.until) && m.limited == limited {
		return
	}
	pause := backoff(m.failures, minBackoff, maxBackoff)
	if limited {
		pause = backoff(m.failures, minLimitBackoff, maxLimitBackoff)
	}
	m.failures++
	m.until, m.limited = now.Add(pause), limited
	if method == headMethod {
		ep.down()
	}
	if ep.failures == 0 && now.Sub(m.logged) >= methodLogInterval { // otherwise the endpoint has logged the cause for all its methods
		m.logged = now
		ep.log.Warn("endpoint fails a method", "method", method, "err", reason)
	}
}

// methodAnswers records that the endpoint answers the method. ep.mu is held.
func (ep *endpoint) methodAnswers(method string) {
	m := ep.methods[method]
	if m == nil || m.failures == 0 {
		return
	}
	// The entry is kept, to limit how often a method that fails and recovers is logged.
	m.failures, m.until, m.limited, m.reason = 0, time.Time{}, false, ""
	ep.log.Debug("endpoint answers the method again", "method", method)
}

// methodStanding returns the health of the endpoint for one method, from that method alone. ep.mu is held.
func (ep *endpoint) methodStanding(method string, now time.Time) endpointHealth {
	m := ep.methods[method]
	switch {
	case m == nil || !now.Before(m.until):
		return standingGood
	case m.limited:
		return standingLimited
	default:
		return standingFailing
	}
}

// failing returns the methods that the endpoint failed when it was last asked, with the reasons; nil if there are none.
// ep.mu is held.
func (ep *endpoint) failing() map[string]string {
	var failing map[string]string
	for method, m := range ep.methods {
		if m.failures > 0 {
			if failing == nil {
				failing = map[string]string{}
			}
			failing[method] = m.reason
		}
	}
	return failing
}

// methodsOf returns the methods of calls, with runs of equal ones reduced to one.
func methodsOf(calls []call) []string {
	var methods []string
	for i, c := range calls {
		if key := c.key(); i == 0 || key != methods[len(methods)-1] {
			methods = append(methods, key)
		}
	}
	return methods
}

// onlyMethod returns the method of the calls, empty if they have several.
func onlyMethod(calls []call) string {
	if methods := methodsOf(calls); len(methods) == 1 {
		return methods[0]
	}
	return ""
}

// anyError accepts every error as an answer of a healthy endpoint.
func anyError(*RPCError) bool { return true }

// limitReason returns the endpoint's reason for a rate limit, without the prefix.
func limitReason(reason string) string { return strings.TrimPrefix(reason, limitPrefix) }

const limitPrefix = "rate limited: "
