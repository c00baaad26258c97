// Package sqs is the queue in Amazon SQS, or in a server that speaks its protocol.
//
// Package queueurl opens it. It calls table for the outbox, worker for the handlers, and the AWS SDK.
//
// # URL
//
//	sqs://sqs.eu-west-1.amazonaws.com/123456789012/relay?region=eu-west-1&dlq=relay-dead
//
// The host and the path are those of the queue's URL. It must be a standard queue, not FIFO. Parameters:
//
//	region    default: the part of the host after "sqs."
//	endpoint  where to connect instead, such as http://127.0.0.1:4566 or a VPC endpoint. It does not change the queue's
//	          URL, except that this begins with http if the endpoint does.
//	dlq       name of the dead-letter queue, of the same account. Default: the queue's name with "-dead".
//	create    true: create the two queues if they do not exist. Otherwise the operator creates them.
//
// Credentials come from the places that [Credentials] lists, never from the URL.
//
// # Messages
//
// The body is the transaction's id. The queue stores no counts that a receiver can change. So a message that is delivered
// later is a new message with the counts as attributes, and the old one is deleted after SQS confirmed the new one.
// [queue.Failed] changes the visibility instead, and the receive count grows. So the failures are those of the attribute
// and the receive count, which also counts deliveries without a result. SQS documents that count as approximate. A
// message that was given back on a stop counts, too.
//
// Delayed messages are not in flight, so any number may wait, and each new message has the full retention period.
//
// # Dead letters
//
// The consumer sends a dead letter to the dead-letter queue itself, with the reason as an attribute, and then deletes
// the message. A redrive policy of the queue is only the safety net. Its maxReceiveCount should be at least twice
// Config.MaxAttempts; a queue that this package creates has 1,000. The dead-letter queue should have the longest retention
// period, 14 days.
//
// Listing receives the dead letters and hides them from others meanwhile, for five minutes if the process dies.
//
// # Permissions
//
// sqs:ReceiveMessage, SendMessage, DeleteMessage, ChangeMessageVisibility and GetQueueAttributes on both queues, and
// CreateQueue with create=true.
package sqs
