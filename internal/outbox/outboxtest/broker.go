package outboxtest

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rollcall-dev/rollcall/internal/outbox"
)

// Broker is a transport in memory. It implements [outbox.Transport]. The rates are those of a broker that fails; all from 0 to 1.
type Broker struct {
	// Redeliver is after how long a message that was not acknowledged is delivered again.
	Redeliver time.Duration
	// Lose is the share of messages that are lost, Repeat of those that are delivered twice. Shuffle delivers messages in random
	// order.
	Lose, Repeat float64
	Shuffle      bool

	mu      sync.Mutex
	waiting []string
	held    map[int]string // received, by receipt
	last    int            // receipt
	failure error          // of all methods
	changed chan struct{}  // closed and replaced when a message arrives
}

// NewBroker returns a Broker that loses and repeats nothing.
func NewBroker(redeliver time.Duration) *Broker {
	return &Broker{Redeliver: redeliver, held: map[int]string{}, changed: make(chan struct{})}
}

// Fail makes all methods return an error, until it is called with nil.
func (b *Broker) Fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failure = err
	b.signalLocked()
}

func (b *Broker) signalLocked() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Send implements [outbox.Transport].
func (b *Broker) Send(_ context.Context, ids []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failure != nil {
		return b.failure
	}
	for _, id := range ids {
		if rand.Float64() < b.Lose {
			continue
		}
		b.waiting = append(b.waiting, id)
		if rand.Float64() < b.Repeat {
			b.waiting = append(b.waiting, id)
		}
	}
	if b.Shuffle {
		rand.Shuffle(len(b.waiting), func(i, j int) { b.waiting[i], b.waiting[j] = b.waiting[j], b.waiting[i] })
	}
	b.signalLocked()
	return nil
}

// Receive implements [outbox.Transport].
func (b *Broker) Receive(ctx context.Context, n int) ([]outbox.Message, error) {
	idle := time.NewTimer(time.Second)
	defer idle.Stop()
	for {
		b.mu.Lock()
		messages, failure, changed := b.takeLocked(n), b.failure, b.changed
		b.mu.Unlock()
		if failure != nil || len(messages) > 0 {
			return messages, failure
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-idle.C:
			return nil, nil
		case <-changed:
		}
	}
}

func (b *Broker) takeLocked(n int) (messages []outbox.Message) {
	if b.failure != nil {
		return nil
	}
	n = min(n, len(b.waiting))
	for _, id := range b.waiting[:n] {
		b.last++
		receipt := b.last
		b.held[receipt] = id
		messages = append(messages, outbox.Message{ID: id, Receipt: receipt})
		time.AfterFunc(b.Redeliver, func() { b.giveBack(receipt) })
	}
	b.waiting = b.waiting[n:]
	return messages
}

func (b *Broker) giveBack(receipt int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if id, ok := b.held[receipt]; ok {
		delete(b.held, receipt)
		b.waiting = append(b.waiting, id)
		b.signalLocked()
	}
}

// Acknowledge implements [outbox.Transport].
func (b *Broker) Acknowledge(_ context.Context, messages []outbox.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failure != nil {
		return b.failure
	}
	for _, m := range messages {
		delete(b.held, m.Receipt.(int))
	}
	return nil
}

// Len returns the number of messages that wait or were received and not acknowledged.
func (b *Broker) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting) + len(b.held)
}
