// Package rabbitmq is the queue in RabbitMQ 3.10 or newer.
//
// Package queueurl opens it. It calls table for the outbox, worker for the handlers, and the AMQP library.
//
// # URL
//
//	amqps://user:password@host:5671/vhost?queue=relay
//
// It is the URL of the AMQP library, with its TLS parameters (cacertfile, certfile, keyfile, server_name_indication), and
// the parameter queue, the name of the queue. Default "rollcall-relay". The URL is a secret.
//
// # Queues
//
// All queues are durable quorum queues, which survive the loss of a node in a cluster of three. This package declares
// them when it connects, or uses them:
//
//	<queue>             messages
//	<queue>.dead        dead letters, with the reason in the header "reason"
//	<queue>.delay.<ms>  messages that wait; each expires after the same time and returns to <queue>
//
// RabbitMQ expires messages at the head of a queue only, so there is a delay queue for each of several times. A delay
// between two times waits in more than one of them. It ends up to half a second, or an eighth, late.
// Expired messages move to <queue> with the strategy at-least-once, so that a crash between loses none.
//
// # Messages
//
// The body is the transaction's id. RabbitMQ cannot change a message. So a message that is delivered again is a new
// message with the counts as headers, and the old one is acknowledged after RabbitMQ confirmed the new one. The
// deliveries that ended without a result are those that RabbitMQ counts. A message that was given back on a stop
// counts, too.
//
// RabbitMQ shows the messages of a consumer to others when its connection ends, or after two missed heartbeats. The
// heartbeat is a third of Config.Visibility, at most 10 s. There is no other visibility timeout, but RabbitMQ ends a
// channel whose message is not acknowledged for 30 minutes (consumer_timeout), so handlers must end before.
//
// # Confirmations
//
// Every message is published as mandatory and persistent, and counts as sent after the confirmation of the broker. A
// message that reaches no queue is returned before that, and does not count.
//
// Publishers have a connection of their own, because RabbitMQ blocks the connections of publishers when it lacks memory
// or disk space. Both connections are opened again by themselves.
//
// # Dead letters
//
// Listing receives the dead letters of <queue>.dead, and gives them back by closing its channel. If the process dies,
// RabbitMQ does that at once.
package rabbitmq
