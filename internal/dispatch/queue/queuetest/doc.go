// Package queuetest is the conformance suite of the queue's backends. Tests of packages table, sqs and rabbitmq call Run.
//
// The suite kills processes. For that, TestMain of the caller calls Main, and the test binary runs as a child that
// receives or enqueues.
package queuetest
