package outbox

import "context"

// Message is an id that a broker delivered.
type Message struct {
	ID      string
	Receipt any // the transport's own
}

// Transport carries ids of entries through a broker. The table holds everything else: attempts, delays and dead entries. A broker
// that loses or repeats messages changes nothing but time, because a [Dispatcher] sends the id of an entry again that no worker has
// begun. Its methods are safe for concurrent use, and return an error while the broker is unavailable; the caller repeats them. An
// error holds no secrets.
type Transport interface {
	// Send sends ids, at most 256, and returns after the broker has confirmed all of them. After an error any of them may have been
	// sent.
	Send(ctx context.Context, ids []string) error
	// Receive waits for messages, and returns at most n, from 1 to 256. It returns early with the messages that have arrived. After
	// at most 30 s without a message it returns none and no error, so that an outage is known to be over. It returns an error if
	// ctx ends.
	//
	// A message that was received and not acknowledged must be received again, here or by another process: after some time while
	// the connection lives, and after its end.
	Receive(ctx context.Context, n int) ([]Message, error)
	// Acknowledge ends messages. After an error, or if the connection was lost, they may be received again.
	Acknowledge(ctx context.Context, messages []Message) error
}
