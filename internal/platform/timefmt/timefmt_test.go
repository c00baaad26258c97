package timefmt

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFormat(t *testing.T) {
	t.Parallel()
	east := time.FixedZone("", 3600)
	for want, at := range map[string]time.Time{
		"2026-11-20T09:00:00.123Z": time.Date(2026, 11, 20, 10, 0, 0, 123_999_999, east),
		"2026-11-20T10:00:00.000Z": time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC),
	} {
		require.Equal(t, want, Format(at))
	}
}
