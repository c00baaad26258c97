package apikey

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheck_BadKeys_AreReportedByNumber(t *testing.T) {
	t.Parallel()
	good := strings.Repeat("k", 32)
	for problem, keys := range map[string][]Key{
		"no API key":                          {},
		"fewer than 32":                       {{Name: "a", Key: good[1:]}},
		"visible ASCII":                       {{Name: "a", Key: good + " x"}},
		"1 and 2 have the same name and diff": {{Name: "a", Key: good}, {Name: "a", Key: good + "2", Role: Reader}},
		"API keys 1 and 2 are the same":       {{Name: "a", Key: good}, {Name: "a", Key: good}},
		"API keys 1 and 3 are the same":       {{Name: "a", Key: good}, {Name: "b", Key: good + "2"}, {Name: "c", Key: good}},
		"its name must":                       {{Name: "", Key: good}},
		"API key 2: its name":                 {{Name: "a", Key: good}, {Name: "b c", Key: good + "2"}},
	} {
		err := Check(keys)
		require.ErrorContains(t, err, problem)
		require.NotContains(t, err.Error(), good[1:])
	}
	require.NoError(t, Check([]Key{{Name: "a-B_9.", Key: good}, {Name: "b", Key: good + "2"}}))

	keys, err := Parse("a/read:" + good + ",b/submit:c/d:e")
	require.NoError(t, err)
	require.Equal(t, []Key{{Name: "a", Key: good, Role: Reader}, {Name: "b", Key: "c/d:e", Role: Submitter}}, keys)
	_, err = Parse("a/admin:" + good + " b/:" + good + " " + good)
	require.EqualError(t, err, "API key 1: its role is neither read nor submit\nAPI key 2: its role is neither read nor submit\nAPI key 3: not name:key")
	keys, err = Parse(" a:" + good + ", b:" + good + "2\n# a comment, with: commas\n\tc:x:y \r\n")
	require.NoError(t, err)
	require.Equal(t, []Key{{Name: "a", Key: good}, {Name: "b", Key: good + "2"}, {Name: "c", Key: "x:y"}}, keys)
	_, err = Parse("a:b " + good)
	require.EqualError(t, err, "API key 2: not name:key")

	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "key", keys[0], "keys", keys)
	for _, shown := range []string{fmt.Sprint(keys[0]), fmt.Sprintf("%+v %#v %s %q %d %x", keys, keys[0], keys[0], &keys[0], keys, keys[0])} {
		require.NotContains(t, shown, good)
	}
	require.NotContains(t, log.String(), good)
}

func TestFind_KeysOfASet(t *testing.T) {
	t.Parallel()
	good := strings.Repeat("k", 32)
	set, err := NewSet([]Key{{Name: "a", Key: good, Role: Submitter}, {Name: "b", Key: good + "2"}})
	require.NoError(t, err)
	name, role := set.Find(good + "2")
	require.Equal(t, "b", name)
	require.Equal(t, Full, role)
	name, role = set.Find(good)
	require.Equal(t, "a", name)
	require.Equal(t, Submitter, role)
	for _, wrong := range []string{"", good[1:], good + "3"} {
		name, role = set.Find(wrong)
		require.Empty(t, name)
		require.Equal(t, Reader, role)
	}
}
