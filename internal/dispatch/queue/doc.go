// Package queue is the contract of the queue between the API and the consumers, and the table in which the API stores an
// entry. A message is the id of a transaction and nothing else: the transaction's row is the truth, and a message means
// "look at this row". So a repeated or late message is harmless.
//
// The consumer, cmd/rollcall and internal/cli call it; package queueurl opens a backend: table, rabbitmq or sqs. It
// calls platform/postgres.
//
// # The table
//
// The API stores a transaction and its entry of relay_queue with one statement, see [EnqueueSQL]. So every committed
// transaction has an entry, and only committed ones have. An entry has the transaction's id as its key, so a transaction
// has at most one. The reconciler may enqueue again at any time.
//
// One table serves all backends. With Postgres as the queue, consumers claim the entries themselves (package table). With
// SQS or RabbitMQ (packages sqs and rabbitmq) the table is the outbox: a dispatcher claims the oldest entries in the same
// way, sends them, and deletes each after the broker confirmed it. Dead letters are in the table in either case, so that neither a limit
// of the broker nor looking at them deletes any. Package queueurl opens the backend that QUEUE_URL
// names.
//
// # Why not River
//
// River would be a second store of jobs in the same database. Its insert takes a transaction with several round trips,
// and maintains six indexes. Ours is a part of the one statement that stores the transaction, with two indexes. Postgres
// also keeps plans that it made while a table was small, so a claim must not depend on statistics. The statements of
// package table leave the planner one index each.
//
// # Guarantees
//
// At least once: a message is handled until a handler returns [Done] or [Dead] for it, and that result is stored. A
// message is delivered again if its process dies, if its result is lost, or if the dispatcher dies between sending and
// deleting.
//
// Visibility: a message that is being handled is hidden from other consumers for Config.Visibility, and longer while its
// handler runs and its process reaches the backend. If the process dies, other consumers get it after that time.
//
// Poison: [Failed] counts, and so does a delivery that ends without a result, because the message may have killed its
// process. A message that failed Config.MaxAttempts times is a dead letter, with the last reason. [Later] does not count.
// Dead letters wait for an operator, see [DeadLetters].
//
// Backpressure: Receive(n) holds at most n running messages and at most n that wait for a handler. The latter are as many
// as the handlers end within 50 ms, so that slow handlers do not keep messages from other consumers.
//
// # What is not guaranteed
//
// Order: messages are delivered roughly by age. Exactly once: handlers must expect repetitions, also concurrent ones.
// Attempts counts deliveries approximately on SQS and RabbitMQ.
package queue
