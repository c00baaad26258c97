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
// Dead letters are in the table. The consumer stores one there, and acknowledges the message afterwards.
//
// # Limits of the broker
//
// A message that RabbitMQ deletes costs time and nothing else, whether a delivery limit, a length limit, a TTL or an operator caused
// it: the sweep enqueues a transaction again that no relayer has had for five minutes. RabbitMQ 4 deletes a message of a quorum queue
// after 20 lost deliveries unless a policy says otherwise, and Config.MaxAttempts comes before that by default. With a lower limit, a
// message that kills its process each time returns after the sweep, and is no dead letter.
//
// A policy may have RabbitMQ dead-letter such messages to <queue>.dead. Consumers return those to the table each minute. Older versions
// kept dead letters in that queue: consumers move them to the table, too. The queue should be this one's alone. Messages in it that are no
// transaction of the database stay there, and consumers that find some collect nothing more until they start again.
//
// # Permissions
//
// Configure, write and read on <queue> and <queue>.delay.*, write on the exchange amq.default, and read on <queue>.dead. A consumer that is
// refused <queue>.dead logs that, and works without what is there.
package rabbitmq
