// Package outboxtest is the conformance kit of package outbox: it runs a kind of table through crashes, lost answers and long backlogs.
package outboxtest
