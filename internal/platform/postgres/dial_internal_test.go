package postgres

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAnswerLimit_ExceedsStatementTimeout(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"15000": 20 * time.Second, "15s": 20 * time.Second, "3 min": 4 * time.Minute, "300 ms": 400 * time.Millisecond, "3h": 4 * time.Hour,
		"0": 0, "": 0, "-1": 0, "1d": 0, "nonsense": 0, // the server rejects values that it cannot parse
	} {
		require.Equal(t, want, answerLimit(text), text)
	}
}
