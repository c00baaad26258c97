package signer

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzParseArray checks that every element is a key or a fault, in order, and that a fault's text is one of a fixed
// few.
func FuzzParseArray(f *testing.F) {
	key := `"0x8f3b2a1c9d4e5f60718293a4b5c6d7e8f9011223344556677889900aabbccdde"`
	for _, seed := range []string{"", "[]", "null", "[" + key + "]", "[" + key + ",7," + key + "]", `[{"privateKey":` + key + `}]`,
		`[{"privateKey":` + key + `,"address":"0x1234567890123456789012345678901234567890"}]`, `[{"a":[{}]}]`, `{"a":1}`, "[[", `["\ud800"]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var list []json.RawMessage
		valid := json.Unmarshal(text, &list) == nil && len(list) > 0 && len(list) <= MaxKeys
		keys, faults := parseArray(bytes.Clone(text))
		if !valid {
			require.Empty(t, keys)
			require.Len(t, faults, 1)
			require.Equal(t, -1, faults[0].index)
			return
		}
		require.Equal(t, len(list), len(keys)+len(faults))
		seen := make([]bool, len(list))
		for _, k := range keys {
			require.False(t, seen[k.index])
			seen[k.index] = true
			require.Len(t, k.key, 32)
		}
		for _, fault := range faults {
			require.False(t, seen[fault.index])
			seen[fault.index] = true
			require.NotEmpty(t, fault.what)
		}
	})
}

// FuzzParseKeystore checks that no content makes parseKeystore, or go-ethereum with its result, panic.
func FuzzParseKeystore(f *testing.F) {
	f.Add([]byte(`{"version":3,"crypto":{"cipher":"aes-128-ctr","cipherparams":{"iv":"00000000000000000000000000000000"},
		"ciphertext":"0000000000000000000000000000000000000000000000000000000000000000","kdf":"scrypt",
		"kdfparams":{"n":2,"r":1,"p":1,"dklen":32,"salt":"00"},"mac":"0000000000000000000000000000000000000000000000000000000000000000"}}`))
	f.Add([]byte(`{"version":3,"crypto":{"kdf":"pbkdf2","kdfparams":{"c":1,"prf":"hmac-sha256"}}}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		file, err := parseKeystore(content)
		if err != nil {
			return
		}
		require.LessOrEqual(t, file.memory(), int64(maxMemory))
		if p := file.params; p.N*p.R*p.P+p.C < 1<<12 {
			_, err := file.open("password")
			require.Error(t, err)
		}
	})
}
