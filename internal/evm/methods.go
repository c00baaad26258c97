package evm

import (
	"errors"
	"fmt"
	"slices"
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
	answered time.Time // when the endpoint last answered it
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

// answeredFor is how long an answer shows that a rate limit of the method is about the number of calls.
const answeredFor = time.Minute

// answeredRecently reports whether the endpoint has answered one of the methods in the last minute.
func (ep *endpoint) answeredRecently(methods []string) bool {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return slices.ContainsFunc(methods, func(method string) bool {
		m := ep.methods[method]
		return m != nil && !m.answered.IsZero() && time.Since(m.answered) < answeredFor
	})
}

// judge decodes the result of a call. It marks an error that is a fault of the endpoint.
func (ep *endpoint) judge(c call, a answer) answer {
	if a.err == nil && c.decode != nil {
		if err := c.decode(a.result); err != nil {
			a.err = ep.transportError(true, fmt.Errorf("result of %s: %w", c.method, err))
		}
	} else if e, ok := errors.AsType[*RPCError](a.err); ok && (rateLimited(e) || !c.isAnswer(e)) {
		e.Fault = true
	}
	return a
}

// recordAnswers records the health of each method by answers that were judged.
func (ep *endpoint) recordAnswers(calls []call, answers []answer) {
	var failed, well map[string]error
	for i, a := range answers {
		into := &well
		if IsNoAnswer(a.err) {
			into = &failed
		}
		if *into == nil {
			*into = map[string]error{}
		}
		(*into)[calls[i].key()] = a.err
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	for method, err := range failed {
		e, ok := errors.AsType[*RPCError](err)
		ep.methodFailed(method, reasonOf(err), ok && rateLimited(e))
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
	m := ep.method(method)
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

// method returns the health of a tracked method. ep.mu is held.
func (ep *endpoint) method(method string) *methodHealth {
	m := ep.methods[method]
	if m == nil {
		m = new(methodHealth)
		ep.methods[method] = m
	}
	return m
}

// methodAnswers records that the endpoint answers the method. ep.mu is held.
func (ep *endpoint) methodAnswers(method string) {
	if !tracked(method) {
		return
	}
	m := ep.method(method)
	if m.answered = time.Now(); m.failures == 0 {
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

// rateLimit returns the rate limit that forbids to ask the endpoint for one of the methods now; nil if there is none.
func (ep *endpoint) rateLimit(methods ...string) *RateLimitError {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.rateLimitLocked(methods...)
}

// rateLimitLocked is rateLimit; ep.mu is held.
func (ep *endpoint) rateLimitLocked(methods ...string) *RateLimitError {
	if left := time.Until(ep.until); ep.limited && left > 0 {
		return &RateLimitError{Endpoint: ep.name, RetryAfter: left, Reason: limitReason(ep.reason)}
	}
	for _, method := range methods {
		if m := ep.methods[method]; m != nil && m.limited && time.Until(m.until) > 0 {
			return &RateLimitError{Endpoint: ep.name, Method: method, RetryAfter: time.Until(m.until), Reason: limitReason(m.reason)}
		}
	}
	return nil
}

// limitReason returns the endpoint's reason for a rate limit, without the prefix.
func limitReason(reason string) string { return strings.TrimPrefix(reason, limitPrefix) }

const limitPrefix = "rate limited: "
