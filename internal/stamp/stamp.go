// Package stamp writes times as Rollcall shows them everywhere, in Redis, on /status, in logs and to scripts: RFC 3339
// in UTC with three decimals and a Z.
package stamp

import "time"

// layout, since the decimals are never left out, sorts as text.
const layout = "2006-01-02T15:04:05.000Z"

// Format writes t.
func Format(t time.Time) string { return t.UTC().Format(layout) }

// Append appends what Format returns.
func Append(b []byte, t time.Time) []byte { return t.UTC().AppendFormat(b, layout) }
