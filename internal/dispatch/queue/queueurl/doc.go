// Package queueurl opens the queue that QUEUE_URL names: the table in the transactions' database, RabbitMQ or Amazon SQS.
// Package queue documents the queues.
//
// cmd/rollcall and internal/cli call it. It calls the backends table, rabbitmq and sqs.
package queueurl
