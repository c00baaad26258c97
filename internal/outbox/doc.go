// Package outbox works on durable entries of a table.
package outbox
