package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The time of a row is the one that its limit applies to: it includes the act, or counts from a known time.
func TestRowsShowWhatTheyBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		d := &drill{ctx: t.Context(), out: &out}
		shows := func(fields ...string) {
			t.Helper()
			require.Equal(t, fields, strings.Fields(out.String()))
			out.Reset()
		}
		act := func() { <-time.After(3 * time.Second) }
		look := func() (string, bool, error) { return "seen", true, nil }
		d.await("step", "expected", 4*time.Second, act, look)
		shows("step", "expected", "seen", "3.0", "ok")
		d.await("step", "expected", 2*time.Second, act, look)
		shows("step", "expected", "seen", "3.0", "FAIL")
		d.awaitSince(time.Now().Add(-time.Second), "step", "expected", 2*time.Second, look)
		shows("step", "expected", "seen", "1.0", "ok")
		never := func() (string, bool, error) { return "nothing", false, nil }
		d.awaitSince(time.Now().Add(-time.Second), "step", "expected", 2*time.Second, never)
		shows("step", "expected", "nothing", "2.0", "FAIL")
		require.Equal(t, 4, d.rows)
		require.Equal(t, 2, d.failed)
	})
}
