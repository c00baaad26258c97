package timefmt

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFormat(t *testing.T) {
	t.Parallel()
	east := time.FixedZone("", 3600)
	for want, at := range map[string]time.Time{
		"2026-11-20T09:00:00.123Z": time.Date(2026, 11, 20, 10, 0, 0, 123_999_999, east),
		"2026-11-20T09:00:59.007Z": time.Date(2026, 11, 20, 9, 0, 59, 7_000_000, time.UTC),
		"1969-12-31T23:59:59.999Z": time.Unix(0, -1),
		"0001-01-01T00:00:00.000Z": {},
		"2026-11-20T10:00:00.000Z": time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC),
	} {
		require.Equal(t, want, Format(at))
	}
}

func TestTimestamp_Zero_IsNull(t *testing.T) {
	t.Parallel()
	var missing, at Timestamp
	require.NoError(t, missing.Scan(nil))
	require.NoError(t, at.Scan(time.Date(2026, 11, 20, 10, 0, 0, 123_999_999, time.FixedZone("", 3600))))
	require.EqualError(t, new(Timestamp).Scan("infinity"), "infinity is not a time")
	text, err := json.Marshal([]Timestamp{missing, at})
	require.NoError(t, err)
	require.Equal(t, `[null,"2026-11-20T09:00:00.123Z"]`, string(text))
	require.Empty(t, missing.String())
	read := []Timestamp{at, missing}
	require.NoError(t, json.Unmarshal(text, &read))
	require.True(t, read[0].IsZero())
	require.True(t, read[1].Equal(at.Truncate(time.Millisecond)))
}
