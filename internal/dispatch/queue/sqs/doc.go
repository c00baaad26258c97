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
//	dlq       name of the queue that a redrive policy moves messages to, of the same account. Default: the queue's name with "-dead".
//	create    true: create the two queues if they do not exist. Otherwise the operator creates them; the second one need not exist.
//
// Credentials come from the places that Credentials of package outbox/sqs lists, never from the URL.
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
// Dead letters are in the table. The consumer stores one there, and deletes the message afterwards.
//
// # Limits of SQS
//
// A message that SQS deletes or moves costs time and nothing else, whether the retention period, a redrive policy or an operator caused
// it. Consumers return the messages of the queue dlq to the table each minute. And the sweep enqueues a transaction again that no relayer
// has had for five minutes. But a message that is moved before it has failed Config.MaxAttempts times never becomes a dead letter. So a
// redrive policy's maxReceiveCount should be at least twice that; consumers warn at their start if it is lower. A queue that this package
// creates has 1,000.
//
// Older versions kept dead letters in the queue dlq: consumers move them to the table, too. The queue dlq should be this queue's alone.
// Messages in it that are no transaction of the database stay there, and consumers that find some collect nothing more until they start
// again.
//
// # Permissions
//
// sqs:ReceiveMessage, SendMessage, DeleteMessage, ChangeMessageVisibility and GetQueueAttributes on both queues, and
// CreateQueue with create=true. A consumer that is refused the queue dlq logs that, and works without what is there.
package sqs
