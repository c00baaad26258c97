package ratelimit

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseRate(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Rate{
		"0": {}, "100": {100, 300}, "100:300": {100, 300}, "0.5": {0.5, 2}, "2:1": {2, 1}, "1000000": {1e6, 3e6}, "0.001:1": {0.001, 1},
	} {
		got, err := ParseRate(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	for _, in := range []string{"", "x", "-1", "NaN", "Inf", "1e7", "1:", "1:0", "1:-1", "1:x", "0:5", "1:2:3", "1 ", "1:99999999"} {
		_, err := ParseRate(in)
		require.Error(t, err, in)
	}
}
