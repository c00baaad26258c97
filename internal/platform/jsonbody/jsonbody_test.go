package jsonbody

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFields_Names_AreExactAndOnce(t *testing.T) {
	t.Parallel()
	read := func(body string) (got map[string]string, err error) {
		object, err := Object([]byte(body))
		if err != nil {
			return nil, err
		}
		got = map[string]string{}
		return got, Fields(object, "", func(name, value []byte) error {
			if string(name) != "to" && string(name) != "gasLimit" {
				return Unknown("", name, "to", "gasLimit")
			}
			got[string(name)] = string(value)
			return nil
		})
	}
	got, err := read(" { \"t\\u006f\" : \"a\\\"}\" ,\n\"gasLimit\":{\"x\":[1,\"]\"]} } ")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"to": `"a\"}"`, "gasLimit": `{"x":[1,"]"]}`}, got)
	for body, problem := range map[string]string{
		`{"to":1,"to":2}`:        "to: is there twice",
		`{"to":1,"\u0074o":2}`:   "to: is there twice",
		`{"To":1}`:               "To: must be written as to",
		`{"gaslimit":1}`:         "gaslimit: must be written as gasLimit",
		`{"gas_limit":1}`:        "gas_limit: is unknown: there are to, gasLimit",
		`{"` + "\u212a" + `":1}`: "\u212a: is unknown: there are to, gasLimit",
	} {
		_, err := read(body)
		require.EqualError(t, err, problem, body)
	}
}

func TestOtherCase_KnownOrForeignName_IsNoError(t *testing.T) {
	t.Parallel()
	require.NoError(t, OtherCase("", []byte("data"), "to", "data"))
	require.NoError(t, OtherCase("", []byte("datum"), "to", "data"))
	require.EqualError(t, OtherCase("metadata", []byte("TRADER"), "trader"), "metadata.TRADER: must be written as trader")
}
