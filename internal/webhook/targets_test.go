package webhook

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseTargets(t *testing.T) {
	t.Parallel()
	got, err := ParseTargets(`[{"name":"a","url":"https://a.example","signingKeys":["` + secret + `2","` + secret + `"]},
		{"name": "b", "url": "https://b.example", "signingKeys": ["` + secret + `3"]}]`)
	require.NoError(t, err)
	require.Len(t, got, 2)
	for i, want := range []Target{
		{Name: "a", URL: "https://a.example", SigningKeys: []string{secret + "2", secret}},
		{Name: "b", URL: "https://b.example", SigningKeys: []string{secret + "3"}},
	} {
		require.True(t, want.Name == got[i].Name && want.URL == got[i].URL, i)
		require.Equal(t, want.SigningKeys, got[i].SigningKeys)
	}
	require.NoError(t, Config{Targets: got}.Validate())

	for text, want := range map[string]string{
		``: "it takes a JSON array", `{}`: "it takes a JSON array", `[]`: "it takes a JSON array", `null`: "it takes a JSON array",
		`["` + secret + `"]`:                            "webhook target 1: it takes an object",
		`[{"name":"a"},{"` + secret + `":1}]`:           "webhook target 2: it takes an object",
		`[{"name":"a","signingKeys":"` + secret + `"}]`: "webhook target 1: it takes an object",
		`[{"name":"a","url":["` + secret + `"]},1]`:     "webhook target 1: it takes an object of name, url and signingKeys, an array\nwebhook target 2: ",
		`[{"name":"` + secret:                           "it takes a JSON array",
	} {
		_, err := ParseTargets(text)
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), secret)
	}
}
