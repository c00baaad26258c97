// Package publish sends the messages of the outbox to a topic of Google Pub/Sub, with the escrow as ordering key. The outbox claims one
// message of an escrow at a time, so a request is sent when the former one of the escrow was accepted.
//
// # One message a request
//
// A request could have up to 1,000 messages of one ordering key. With one message it needs no result for a part of a request, and nothing but
// the outbox's order of a subject to keep the order of an escrow. The price is that the backlog of one escrow moves by one message for each
// round trip. Escrows have a handful of events, and the requests of up to 256 escrows run concurrently, so a backlog of many escrows does not
// wait for round trips.
//
// # Failures
//
//	accepted                          the message is done
//	no answer, or another failure     repeated with the same content after a pause, because the topic may have it; other escrows go on
//	the topic is away                 the same, and the process claims nothing for a pause; other processes go on
//	the key is refused                FAILED_PRECONDITION: repeated after a pause
//	the message is refused for good   a dead letter, which holds back the later ones of its escrow until an operator replays or drops it
//
// The topic is away if it does not answer, does not exist, or refuses the credentials. It also counts as away if it fails two messages one
// after the other in another way, such as INTERNAL or DEADLINE_EXCEEDED. A single message that fails so may be the cause itself. It is
// repeated after one to five seconds, for ever: it is not given up, because the topic has not refused it.
//
// The Pub/Sub library's own publisher is not used: it has a queue of its own, and pauses a key after an error until the program resumes it.
//
// # Webhooks
//
// The messages may go to webhooks instead, or as well: each target has a lane of its own, see [Webhooks]. Package webhook delivers them.
package publish
