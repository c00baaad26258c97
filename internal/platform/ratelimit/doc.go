// Package ratelimit parses rates of requests, and takes tokens from several buckets together. The APIs of the relayer and of
// the relay path limit their callers with it.
package ratelimit
