package timefmt

import "time"

// layout sorts as text, because the decimals are never left out.
const layout = "2006-01-02T15:04:05.000Z"

// Format returns t as text.
func Format(t time.Time) string { return t.UTC().Format(layout) }
