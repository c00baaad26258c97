// Package queue brings transactions from the API to the consumers. An entry is the id of a transaction, and means "look at its row".
// The row is the truth, so a repeated or late entry is harmless.
//
// The entries are those of package outbox, in the table relay_queue: it documents states, guarantees, fairness and dead entries. The lane
// is the client, so a client with a backlog delays no other one; a broker has at most 1,000 entries that precede others. The API stores a transaction and its entry with one statement, see
// [EnqueueSQL]. The reconciler may enqueue again at any time.
//
// Consumers claim the entries from the table. If Config.URL names SQS or RabbitMQ, APIs and consumers send the ids of the entries to the
// broker, and consumers receive them there.
//
// The API, the consumer and the command line call it.
package queue
