package publish

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/sony/gobreaker/v2"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/outbox"
)

const (
	// inFlight is how many escrows have a request at a time.
	inFlight = 256
	// awayPause is for how long a process claims nothing after the topic was away.
	awayPause = time.Second
	// A message that the topic may have is repeated after a pause that doubles from firstAway to longestAway. Backoff shortens it by half at
	// most, so it is at least awayPause: the next request is that of another escrow. A topic that is back gets everything within longestAway.
	firstAway, longestAway = 2 * awayPause, 5 * time.Second
	// haltedPause is for how long a process claims nothing after it found the chain halted.
	haltedPause = 2 * time.Second
	// A message whose key is refused is repeated after a pause that doubles from firstPause to longestPause.
	firstPause, longestPause = 100 * time.Millisecond, time.Minute
	// lease is how long no other process gets the messages of one that died. A takeover of an escrow takes that long.
	lease = 10 * time.Second
	// DrainTimeout is how long requests may continue after a stop, to the topic as to webhooks: the process ends within five seconds.
	DrainTimeout = 3 * time.Second
)

// Config configures a Publisher. Fields without a default are required.
type Config struct {
	Topic *Topic
	// Outbox has the messages, and Lane is the topic's lane in it.
	Outbox *outbox.Outbox
	Lane   string
	// Halted reports whether the chain of a claimed message was halted, so that nothing may leave.
	Halted func(outbox.Work) bool
	// Total and Number restrict the process to the partitions with partition mod Total = Number. Default: all.
	Total, Number int
	// Retention is how long messages that the topic has accepted are kept. Default 0: until an operator purges them.
	Retention time.Duration
	Metrics   *Metrics     // default: unregistered
	Logger    *slog.Logger // default: discard
}

// errNoEvidence is the result, for the breaker, of a request that does not show whether the topic is away.
var errNoEvidence = errors.New("the request does not show whether the topic is away")

// Publisher publishes the messages of a lane. Any number of them, in any number of processes, share a lane.
type Publisher struct {
	cfg     Config
	log     *slog.Logger
	worker  *outbox.Worker
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	cause   atomic.Value // string: of the latest failure of the topic
	latest  atomic.Value // string: the id of the latest message that failed since the topic has accepted one; "" if none did
	halted  atomic.Int64 // Unix nanoseconds until which nothing is claimed
}

// New returns a Publisher, or all problems of the Config.
func New(cfg Config) (*Publisher, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	p := &Publisher{cfg: cfg, log: cfg.Logger.With("component", "publisher")}
	p.latest.Store("")
	p.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name: cfg.Lane, MaxRequests: 1, Timeout: awayPause,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures > 0 },
		IsExcluded:  func(err error) bool { return errors.Is(err, errNoEvidence) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			switch {
			case to == gobreaker.StateClosed:
				p.log.Info("topic accepts messages again", "topic", cfg.Topic.name)
			case from == gobreaker.StateClosed:
				p.log.Warn("topic is away", "topic", cfg.Topic.name, "err", p.cause.Load())
			}
		},
	})
	var err error
	p.worker, err = cfg.Outbox.NewWorker(outbox.Config{
		Handle: p.publish, Concurrency: inFlight, Lease: lease, DrainTimeout: DrainTimeout, Prefix: cfg.Lane, Partitions: cfg.Total, Partition: cfg.Number,
		Retention: cfg.Retention, Limits: p.limit, Component: "publisher", Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Run publishes until ctx ends, and returns nil then.
func (p *Publisher) Run(ctx context.Context) error { return p.worker.Run(ctx) }

// Turned returns when the loop of Run last turned; the zero time before the first turn.
func (p *Publisher) Turned() time.Time { return p.worker.Turned() }

// Health returns nil while the database answers and the topic accepts messages, and otherwise the cause.
func (p *Publisher) Health() error {
	if p.breaker.State() == gobreaker.StateOpen {
		return fmt.Errorf("topic %s is away: %v", p.cfg.Topic.name, p.cause.Load())
	}
	return p.worker.Health()
}

// limit returns how many messages of the lane may be claimed.
func (p *Publisher) limit(string) int {
	switch {
	case time.Now().UnixNano() < p.halted.Load():
		return 0
	case p.breaker.State() == gobreaker.StateOpen:
		return 0
	case p.breaker.State() == gobreaker.StateHalfOpen:
		return 1
	}
	return inFlight
}

// publish sends one claimed message.
func (p *Publisher) publish(ctx context.Context, w outbox.Work) outbox.Result {
	if p.cfg.Halted(w) {
		p.halted.Store(time.Now().Add(haltedPause).UnixNano())
		return outbox.Returned()
	}
	var m events.Envelope
	if err := json.Unmarshal(w.Payload, &m); err != nil {
		return outbox.GiveUp("the message cannot be read: " + err.Error())
	}
	done, err := p.breaker.Allow()
	if err != nil {
		return outbox.Returned()
	}
	err = p.cfg.Topic.publish(ctx, &pubsubpb.PubsubMessage{Data: w.Payload, Attributes: m.Attributes(), OrderingKey: m.OrderingKey()})
	switch c := classify(err); {
	case (c == away || c == failed) && ctx.Err() != nil: // this process stops, or has lost the claim
		done(errNoEvidence)
		return outbox.Returned()
	case c == away || c == failed:
		return p.unanswered(w, m.OrderingKey(), c, err, done)
	case c == again:
		done(nil)
		p.cfg.Metrics.failed.WithLabelValues("again").Inc()
		return outbox.Retry(err.Error(), outbox.Backoff(w.Failures, firstPause, longestPause))
	case c == refused:
		done(nil)
		p.cfg.Metrics.failed.WithLabelValues("refused").Inc()
		return outbox.GiveUp(err.Error())
	}
	p.latest.Store("")
	done(nil)
	p.cfg.Metrics.published.Inc()
	return outbox.Finished()
}

// unanswered returns the result for a message that the topic may have or not, and reports to the breaker whether the topic is away. It is
// never given up.
//
// A failure that is not about the topic may be the message's own, unless another message was the latest to fail. A message that fails twice
// in a row gets a pause: otherwise it would be the oldest one that is due, and so each request of this process, and no other escrow would go
// on. The first time it gets none, because the topic may be away for this process alone, and another one publishes it at once.
func (p *Publisher) unanswered(w outbox.Work, escrow string, c class, err error, done func(error)) outbox.Result {
	before := p.latest.Swap(w.ID)
	own := c == failed && (before == w.ID || before == "")
	if own {
		done(errNoEvidence)
		p.cfg.Metrics.failed.WithLabelValues("again").Inc()
		if w.Failures == 1 {
			p.log.Warn("topic fails a message", "topic", p.cfg.Topic.name, "id", w.ID, "escrow", escrow, "err", err)
		}
	} else {
		p.cause.Store(err.Error())
		done(err)
		p.cfg.Metrics.failed.WithLabelValues("away").Inc()
	}
	if own || before == w.ID {
		return outbox.Retry(err.Error(), outbox.Backoff(w.Failures, firstAway, longestAway))
	}
	return outbox.Returned()
}
