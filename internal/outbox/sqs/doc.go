// Package sqs carries ids of entries through Amazon SQS, or through a server that speaks its protocol. Package outbox documents
// transports.
//
// # URL
//
//	sqs://sqs.eu-west-1.amazonaws.com/123456789012/relay?region=eu-west-1
//
// The host and the path are those of the queue's URL. It must be a standard queue, not FIFO. Parameters:
//
//	region    default: the part of the host after "sqs."
//	endpoint  where to connect instead, such as http://127.0.0.1:4566 or a VPC endpoint. It does not change the queue's
//	          URL, except that this begins with http if the endpoint does.
//	create    true: create the queue if it does not exist. Otherwise the operator creates it.
//	dlq       ignored; older versions had a second queue.
//
// Credentials come from the places that [Credentials] lists, never from the URL.
//
// # Messages
//
// The body is the entry's id. A message ends as soon as the table has the claim, so it is in flight for the length of a turn. A
// message whose worker died before is delivered again after half a minute.
//
// A message that SQS deletes or moves costs time and nothing else, whether the retention period, a redrive policy or an operator
// caused it: the dispatcher sends the id again. So the queue needs neither a redrive policy nor a second queue.
//
// # Permissions
//
// sqs:ReceiveMessage, SendMessage, DeleteMessage and ChangeMessageVisibility on the queue, and CreateQueue with create=true.
package sqs
