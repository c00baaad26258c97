// Package rabbitmq carries ids of entries through RabbitMQ 3.10 or newer. Package outbox documents transports.
//
// # URL
//
//	amqps://user:password@host:5671/vhost?queue=relay
//
// It is the URL of the AMQP library, with its TLS parameters (cacertfile, certfile, keyfile, server_name_indication), and
// the parameter queue, the name of the queue. Default "rollcall-relay". The URL is a secret.
//
// # Messages
//
// The queue is a durable quorum queue, which survives the loss of a node in a cluster of three. This package declares it when it
// connects. The body of a message is the entry's id. A message ends as soon as the table has the claim, so it is unacknowledged for the
// length of a turn. A message whose worker died is delivered again when its connection ends, or after two missed heartbeats.
//
// A message counts as sent after the confirmation of the broker. One that reaches no queue is returned before that, and does not count.
//
// A message that RabbitMQ deletes costs time and nothing else, whether a delivery limit, a length limit, a TTL or an operator caused
// it: the dispatcher sends the id again.
//
// Publishers have a connection of their own, because RabbitMQ blocks the connections of publishers when it lacks memory or disk
// space. Both connections are opened again by themselves.
//
// # Permissions
//
// Configure, write and read on the queue, and write on the exchange amq.default.
package rabbitmq
