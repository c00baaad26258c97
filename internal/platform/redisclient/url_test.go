package redisclient

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseSentinel_Addresses(t *testing.T) {
	t.Parallel()
	for url, want := range map[string][]string{
		"redis+sentinel://s?master_name=m":                          {"s:26379"},
		"rediss+sentinel://u:p@[::1]/2?master_name=m":               {"[::1]:26379"},
		"redis+sentinel://s:1?master_name=m&addr=t:2&addr=u:3":      {"s:1", "t:2", "u:3"},
		"redis+sentinel://s/?master_name=m&addr=t:26379&db=1":       {"s:26379", "t:26379"},
		"redis+sentinel://?master_name=m":                           {"localhost:26379"},
		"redis+sentinel://:secret@s:26380/1?master_name=m&addr=t:2": {"s:26380", "t:2"},
	} {
		s, err := Options{URL: url}.parseSentinel()
		require.NoError(t, err, url)
		require.Equal(t, want, s.SentinelAddrs, url)
	}
}
