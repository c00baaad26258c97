// Package timefmt formats times for Redis, /status, logs and scripts: RFC 3339 in UTC with three decimals and a Z.
//
// Mirror, director and status call it.
package timefmt
