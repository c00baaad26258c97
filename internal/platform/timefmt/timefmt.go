package timefmt

import (
	"fmt"
	"time"
)

// layout sorts as text, because the decimals are never left out.
const layout = "2006-01-02T15:04:05.000Z"

// Format returns t as text.
func Format(t time.Time) string { return t.UTC().Format(layout) }

// Timestamp is a time that may be missing. The zero time is null in the database and in JSON.
type Timestamp struct{ time.Time }

// Scan reads a column.
func (t *Timestamp) Scan(value any) error {
	at, ok := value.(time.Time)
	if !ok && value != nil {
		return fmt.Errorf("%v is not a time", value)
	}
	t.Time = at
	return nil
}

// String returns t as Format does; "" for the zero time.
func (t Timestamp) String() string {
	if t.IsZero() {
		return ""
	}
	return Format(t.Time)
}

// MarshalJSON returns t as String does, or null.
func (t Timestamp) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return []byte(`"` + t.String() + `"`), nil
}

// UnmarshalJSON reads the result of MarshalJSON, or any RFC 3339.
func (t *Timestamp) UnmarshalJSON(text []byte) error {
	t.Time = time.Time{}
	return t.Time.UnmarshalJSON(text)
}
