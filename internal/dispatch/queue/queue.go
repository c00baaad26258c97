package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
)

// Message is one delivery of a transaction's id.
type Message struct {
	ID         uuid.UUID // of the transaction
	Attempts   int       // deliveries so far, with this one: 1 for the first
	EnqueuedAt time.Time // when its entry was stored
}

// Handler handles a message. Its context does not end with the one of Receive, so that a handler can finish; it ends
// after Config.DrainTimeout. The handler must return soon after that.
type Handler func(context.Context, Message) Verdict

// Consumer receives messages.
type Consumer interface {
	// Receive calls handle for messages, for at most n concurrently, until ctx ends. Then it fetches nothing more, gives
	// back the messages that it has not started, waits for running handlers, and returns nil. While the backend is
	// unavailable it retries. Several calls, in any number of processes, share the messages.
	Receive(ctx context.Context, n int, handle Handler) error
}

// Producer makes committed entries available to the consumers.
type Producer interface {
	// Notify reports that an entry was committed. It never blocks. Without it, a consumer gets the entry a second later.
	Notify()
	// Run works until ctx ends and returns nil then. It sends entries to the broker if there is one, and otherwise wakes
	// the consumers. Entries are sent by any process that runs it, so the consumers' processes should run it too.
	Run(ctx context.Context) error
}

// DeadLetters gives operators access to the messages that were given up.
type DeadLetters interface {
	// List returns up to limit dead letters, the oldest first.
	List(ctx context.Context, limit int) ([]DeadLetter, error)
	// Replay makes the dead letters of these transactions messages again, with no failures, and returns their number.
	// After an error some may have been replayed.
	Replay(ctx context.Context, ids ...uuid.UUID) (int, error)
	// ReplayAll is Replay for all dead letters.
	ReplayAll(ctx context.Context) (int, error)
	// Drop deletes the dead letters of these transactions, and returns their number.
	Drop(ctx context.Context, ids ...uuid.UUID) (int, error)
}

// DeadLetter is a message that was given up.
type DeadLetter struct {
	ID         uuid.UUID `json:"transaction"`
	Attempts   int       `json:"attempts"`
	Reason     string    `json:"reason"`
	EnqueuedAt time.Time `json:"enqueuedAt"`
	DeadAt     time.Time `json:"deadAt"`
}

// Queue is a backend. Its methods are safe for concurrent use.
type Queue interface {
	Consumer
	Producer
	DeadLetters
	// Health returns nil while the backend answers, and otherwise the cause, without secrets.
	Health() error
	// Close closes the queue's connections. Call it after Receive and Run have returned.
	Close() error
}

// Verdict is a handler's result for a message. Its zero value counts as a failure.
type Verdict struct {
	Kind   Kind
	Delay  time.Duration // from 0 to MaxDelay
	Reason string        // printable, at most 500 characters
}

// Kind is a kind of Verdict.
type Kind int

// The kinds of a Verdict.
const (
	KindNone Kind = iota
	KindDone
	KindLater
	KindFailed
	KindDead
)

// String returns the kind as the metrics name it.
func (k Kind) String() string {
	return [...]string{"none", "done", "later", "failed", "dead"}[k]
}

const (
	// MaxDelay is the longest delay of a message, which is that of SQS. Longer ones are reduced to it.
	MaxDelay = 15 * time.Minute
	// maxReason is the longest reason in characters.
	maxReason = 500
)

// Done ends a message.
func Done() Verdict { return Verdict{Kind: KindDone} }

// Later delivers a message again after d. It is no failure of the message.
func Later(d time.Duration) Verdict { return Verdict{Kind: KindLater, Delay: d}.Normal() }

// Failed delivers a message again after d, or makes it a dead letter if it failed Config.MaxAttempts times.
func Failed(reason string, d time.Duration) Verdict {
	return Verdict{Kind: KindFailed, Reason: reason, Delay: d}.Normal()
}

// Dead makes a message a dead letter.
func Dead(reason string) Verdict { return Verdict{Kind: KindDead, Reason: reason}.Normal() }

// Normal returns the verdict with a valid delay and reason. Backends call it for each verdict of a handler. Neither
// Postgres nor SQS stores every control character.
func (v Verdict) Normal() Verdict {
	if v.Kind < KindDone || v.Kind > KindDead {
		v = Verdict{Kind: KindFailed, Reason: "the handler returned no verdict", Delay: time.Second}
	}
	v.Delay = min(max(v.Delay, 0), MaxDelay)
	v.Reason = printable(v.Reason)
	if v.Reason == "" && (v.Kind == KindFailed || v.Kind == KindDead) {
		v.Reason = "no reason given"
	}
	return v
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

// LostReason is the reason of a dead letter whose last deliveries ended without a result. last is the reason of its
// latest failure, if any.
func LostReason(failures int, last string) string {
	reason := fmt.Sprintf("failed or was delivered without a result %d times", failures)
	if last != "" {
		reason += ", the latest failure: " + last
	}
	return printable(reason)
}

// Config configures a queue. The zero value has all defaults.
type Config struct {
	// Visibility is how long a message stays hidden after its process died. Default 60 s; at least 1 s, at most 12 h.
	// SQS rounds it up to seconds. RabbitMQ detects a dead connection instead, within this time.
	Visibility time.Duration
	// MaxAttempts is after how many failures a message becomes a dead letter. Default 20.
	MaxAttempts int
	// DrainTimeout is how long running handlers may continue after a stop before their context ends. Default 40 s.
	DrainTimeout time.Duration
	// Logger receives state changes and dead letters. Default: discard. Commands wrap it with package warnings.
	Logger *slog.Logger
	// Metrics of the process. Default: unregistered.
	Metrics *Metrics
}

// ErrStopped is the cause of the end of a handler's context after Config.DrainTimeout.
var ErrStopped = errors.New("the consumer stops")

// LogDeadLetter records that a message was given up. Backends call it.
func (c Config) LogDeadLetter(m Message, reason string) {
	c.Metrics.deadLetters.Inc()
	c.Logger.Warn("message given up", "component", "consumer", "tx", m.ID, "attempts", m.Attempts, "err", reason)
}

// MaxVisibility is the longest visibility timeout, which is that of SQS.
const MaxVisibility = 12 * time.Hour

// Complete returns the Config with defaults, or all its problems. Backends call it.
func (c Config) Complete() (Config, error) {
	var errs []error
	c.Visibility = cmp.Or(c.Visibility, time.Minute)
	if c.Visibility < time.Second || c.Visibility > MaxVisibility {
		errs = append(errs, fmt.Errorf("visibility timeout %v: from 1s to %v", c.Visibility, MaxVisibility))
	}
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 20)
	if c.MaxAttempts < 1 || c.MaxAttempts > 500 {
		errs = append(errs, fmt.Errorf("maximum of attempts %d: from 1 to 500", c.MaxAttempts))
	}
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 40*time.Second)
	if c.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("drain timeout %v: must not be negative", c.DrainTimeout))
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
	return c, errors.Join(errs...)
}
