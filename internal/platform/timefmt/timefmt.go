package timefmt

import "time"

// layout sorts as text, because the decimals are never left out.
const layout = "2006-01-02T15:04:05.000Z"

// Format returns t as text.
func Format(t time.Time) string { return t.UTC().Format(layout) }

// Append appends the result of Format. It is for thousands of calls: Go formats its own RFC 3339 without parsing the
// layout, in a third of the time.
func Append(b []byte, t time.Time) []byte {
	b = t.UTC().AppendFormat(b, time.RFC3339)
	ms := t.Nanosecond() / int(time.Millisecond)
	return append(b[:len(b)-len("Z")], '.', digit(ms/100), digit(ms/10), digit(ms), 'Z')
}

func digit(n int) byte { return '0' + byte(n%10) }
