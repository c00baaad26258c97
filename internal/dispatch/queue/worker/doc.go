// Package worker runs the handlers of messages with bounded concurrency, for all backends of the queue. It fetches
// nothing itself: a backend asks for the room, fetches as many messages, and adds them. The panic of a handler is a failed
// delivery.
//
// The packages table, rabbitmq and sqs call it. It calls the package queue.
package worker
