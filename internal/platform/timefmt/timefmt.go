// Package timefmt writes times as Rollcall shows them everywhere, in Redis, on /status, in logs and to scripts: RFC 3339
// in UTC with three decimals and a Z.
package timefmt

import "time"

// layout, since the decimals are never left out, sorts as text.
const layout = "2006-01-02T15:04:05.000Z"

// Format writes t.
func Format(t time.Time) string { return t.UTC().Format(layout) }

// Append appends what Format returns. It is for thousands at a time: of the layouts, Go writes only its own RFC 3339
// without going through the text of it, in a third of the time.
func Append(b []byte, t time.Time) []byte {
	b = t.UTC().AppendFormat(b, time.RFC3339)
	ms := t.Nanosecond() / int(time.Millisecond)
	return append(b[:len(b)-len("Z")], '.', digit(ms/100), digit(ms/10), digit(ms), 'Z')
}

func digit(n int) byte { return '0' + byte(n%10) }
