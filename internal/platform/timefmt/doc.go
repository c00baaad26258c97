// Package timefmt formats times for Redis, /status, logs and scripts: RFC 3339 in UTC with three decimals and a Z.
//
// Mirror, director and status format times with it. Rows of the relayer and of webhooks have its Timestamp.
package timefmt
