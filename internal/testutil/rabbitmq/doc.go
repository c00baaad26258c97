// Package rabbitmq provides real RabbitMQ servers for tests.
//
// URL returns the server that all tests of a process share; each test uses queues of its own. Own starts a server for one
// test, which can be stopped and started again with its data. A server listens on loopback ports of its own, has
// its own name, cookie and folder, and a port mapper (epmd) of its own. All of them end with the test or with Main, by
// their process ids.
//
// A test without RabbitMQ fails if CI=true, and is skipped otherwise. Tests of package outbox/rabbitmq call it. It calls
// proc.
package rabbitmq
