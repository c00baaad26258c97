package outbox

import (
	"math/rand/v2"
	"strings"
	"time"
	"unicode"
)

// Kind is the kind of a [Result].
type Kind int

// The kinds of a Result.
const (
	KindNone Kind = iota
	KindFinished
	KindRetry
	KindLater
	KindGiveUp
	KindReturned
)

// String returns the kind as metrics name it.
func (k Kind) String() string {
	return [...]string{"none", "finished", "retry", "later", "dead", "returned"}[k]
}

// Result is a handler's result for an entry. The zero value counts as a failure.
type Result struct {
	Kind   Kind
	Delay  time.Duration // of Retry and Later
	Reason string        // of Retry and GiveUp: printable, at most 500 characters
}

const (
	// maxReason is the longest reason in characters.
	maxReason = 500
	// maxDelay is far above every sensible delay, and keeps the sum with now() within Postgres's range.
	maxDelay = 10 * 365 * 24 * time.Hour
	// failurePause is the delay after a handler that panicked or returned no result.
	failurePause = time.Second
)

// Finished ends an entry.
func Finished() Result { return Result{Kind: KindFinished} }

// Retry repeats an entry after a delay. It counts as a failure: after Config.MaxFailures, or Config.RetryFor, the entry is dead.
// The last attempt is made at the end of Config.RetryFor, not a delay earlier.
func Retry(reason string, delay time.Duration) Result {
	return Result{Kind: KindRetry, Reason: reason, Delay: delay}
}

// Later repeats an entry after a delay. It is no failure.
func Later(delay time.Duration) Result { return Result{Kind: KindLater, Delay: delay} }

// GiveUp makes an entry dead.
func GiveUp(reason string) Result { return Result{Kind: KindGiveUp, Reason: reason} }

// Returned gives an entry back as if it had not been claimed, for example because the process stops.
func Returned() Result { return Result{Kind: KindReturned} }

// normal returns the result with a valid kind, delay and reason. Postgres does not store every control character.
func (r Result) normal() Result {
	if r.Kind < KindFinished || r.Kind > KindReturned {
		r = Retry("the handler returned no result", failurePause)
	}
	r.Delay = min(max(r.Delay, 0), maxDelay)
	r.Reason = printable(r.Reason)
	if r.Reason == "" && (r.Kind == KindRetry || r.Kind == KindGiveUp) {
		r.Reason = "no reason given"
	}
	return r
}

func printable(text string) string {
	n := 0
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if n++; n > maxReason {
			return -1
		}
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD")))
}

// Backoff returns the pause after a number of failures, from 1: first, doubled with each failure up to limit, minus up to half of
// it as jitter, so that entries that failed together are not retried together.
func Backoff(failures int, first, limit time.Duration) time.Duration {
	d := first
	for n := 1; n < failures && d < limit; n++ {
		d *= 2
	}
	d = min(d, limit)
	return d - time.Duration(rand.Float64()*float64(d/2))
}
