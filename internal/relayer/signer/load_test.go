package signer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ethereum/go-ethereum/accounts/keystore"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
)

const password = "correct horse battery staple"

// load also returns the log.
func load(t *testing.T, environ ...string) (*signer.Ring, string, error) {
	t.Helper()
	var log bytes.Buffer
	ring, err := signer.Load(t.Context(), signer.Source{Environ: environ, Log: slog.New(slog.NewTextHandler(&log, nil))})
	return ring, log.String(), err
}

func file(t *testing.T, content string, mode os.FileMode) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	require.NoError(t, os.Chmod(name, mode)) // independent of the umask
	return name
}

func requireRing(t *testing.T, ring *signer.Ring, keys ...signertest.Key) {
	t.Helper()
	require.Equal(t, len(keys), ring.Len())
	for _, k := range keys {
		s, ok := ring.Signer(k.Address)
		require.True(t, ok)
		require.Equal(t, k.Address, s.Address())
		want, err := k.Signer.Sign(t.Context(), [32]byte{1})
		require.NoError(t, err)
		got, err := s.Sign(t.Context(), [32]byte{1})
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestLoad_EverySource(t *testing.T) {
	t.Parallel()
	k := signertest.Keys(t, "sources", 3)
	bare := func(i int) string { return k[i].Hex()[2:] }
	array := fmt.Sprintf("[%q, {\"privateKey\": %q}, {\"address\": %q, \"privateKey\": %q}]",
		k[0].Hex(), strings.ToUpper(bare(1)), k[2].Address, bare(2))
	folder := t.TempDir()
	signertest.WriteKeystore(t, folder, password, k...)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "UTC--2026-01-01--other"), nil, 0o600))
	for name, environ := range map[string][]string{
		"array":         {"RELAYER_PRIVATE_KEYS_JSON=" + array},
		"array in file": {"RELAYER_PRIVATE_KEYS_JSON_FILE=" + file(t, array+"\r\n", 0o600)},
		"one each":      {"RELAYER_PRIVATE_KEY_2=" + bare(2), "RELAYER_PRIVATE_KEY_0= " + k[0].Hex() + "\n", "RELAYER_PRIVATE_KEY_1=0X" + bare(1)},
		"one each, in a file too": {
			"RELAYER_PRIVATE_KEY_0=" + k[0].Hex(), "RELAYER_PRIVATE_KEY_1_FILE=" + file(t, k[1].Hex()+"\n", 0o400),
			"RELAYER_PRIVATE_KEY_2=" + k[2].Hex(),
		},
		"keystore":           {"RELAYER_KEYSTORE_DIR=" + folder, "RELAYER_KEYSTORE_PASSWORD=" + password},
		"keystore, password": {"RELAYER_KEYSTORE_DIR=" + folder, "RELAYER_KEYSTORE_PASSWORD_FILE=" + file(t, password+"\n", 0o600)},
		"empty is not set":   {"RELAYER_PRIVATE_KEYS_JSON=" + array, "RELAYER_PRIVATE_KEY_0=", "RELAYER_KEYSTORE_DIR= ", "RELAYER_ALLOWED_ADDRESSES=", "nonsense"},
		"the last wins":      {"RELAYER_PRIVATE_KEYS_JSON=[]", "RELAYER_PRIVATE_KEYS_JSON=" + array},
		"allowed": {
			"RELAYER_PRIVATE_KEYS_JSON=" + array,
			"RELAYER_ALLOWED_ADDRESSES=" + k[0].Address.Hex() + ", " + strings.ToLower(k[1].Address.Hex()) + "\n" + strings.ToUpper(k[2].Address.Hex()[2:]),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ring, log, err := load(t, environ...)
			require.NoError(t, err)
			require.Empty(t, log)
			requireRing(t, ring, k...)
		})
	}
}

func TestLoad_MaxKeys(t *testing.T) {
	t.Parallel()
	keys := signertest.Keys(t, "thousand", signer.MaxKeys)
	var environ, array []string
	for i, k := range keys {
		environ = append(environ, "RELAYER_PRIVATE_KEY_"+strconv.Itoa(i)+"="+k.Hex())
		array = append(array, strconv.Quote(k.Hex()))
	}
	ring, _, err := load(t, environ...)
	require.NoError(t, err)
	require.Equal(t, signer.MaxKeys, ring.Len())
	ring, _, err = load(t, "RELAYER_PRIVATE_KEYS_JSON=["+strings.Join(array, ",")+"]")
	require.NoError(t, err)
	require.Equal(t, signer.MaxKeys, ring.Len())

	_, _, err = load(t, append(environ, "RELAYER_PRIVATE_KEY_1000="+keys[0].Hex())...)
	require.EqualError(t, err, "load keys: RELAYER_PRIVATE_KEY_0: and the others are 1001 keys: more than 1000")
	_, _, err = load(t, "RELAYER_PRIVATE_KEYS_JSON=["+strings.Join(array, ",")+`,""]`)
	require.EqualError(t, err, "load keys: RELAYER_PRIVATE_KEYS_JSON: holds 1001 keys: more than 1000")
}

const malformed = "is not a private key: it takes 64 hex digits, with or without 0x, from 1 to the order of secp256k1"

func TestLoad_Invalid_NamesEachFault(t *testing.T) {
	t.Parallel()
	k := signertest.Keys(t, "faults", 4)
	key := func(i int) string { return k[i].Hex() }
	array := func(text string) []string { return []string{"RELAYER_PRIVATE_KEYS_JSON=" + text} }
	const order = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"
	missing := filepath.Join(t.TempDir(), "missing")
	empty, large := file(t, "\n", 0o600), file(t, strings.Repeat("a", 1<<20+1), 0o600)
	group := file(t, key(0), 0o620)
	folder := t.TempDir()
	const shape = `is neither a string nor an object of "privateKey" and perhaps "address", both strings`
	for name, c := range map[string]struct {
		environ []string
		want    []string
	}{
		"nothing": {nil, []string{"the environment: there are no keys; give RELAYER_PRIVATE_KEYS_JSON, RELAYER_PRIVATE_KEY_0 and so on, or RELAYER_KEYSTORE_DIR"}},
		"two sources": {
			append(array("["+strconv.Quote(key(0))+"]"), "RELAYER_PRIVATE_KEY_0="+key(1)),
			[]string{"RELAYER_PRIVATE_KEYS_JSON: contradicts RELAYER_PRIVATE_KEY_0; give keys in one of them"},
		},
		"three sources": {
			append(array("[]"), "RELAYER_PRIVATE_KEY_0_FILE=x", "RELAYER_KEYSTORE_DIR=x"),
			[]string{"RELAYER_PRIVATE_KEYS_JSON: contradicts RELAYER_PRIVATE_KEY_0_FILE and RELAYER_KEYSTORE_DIR; give keys in one of them"},
		},
		"a variable and its file": {
			[]string{"RELAYER_PRIVATE_KEY_0=" + key(0), "RELAYER_PRIVATE_KEY_0_FILE=x"},
			[]string{"RELAYER_PRIVATE_KEY_0_FILE: contradicts RELAYER_PRIVATE_KEY_0; give one of them"},
		},
		"gaps": {
			[]string{"RELAYER_PRIVATE_KEY_1=" + key(0), "RELAYER_PRIVATE_KEY_2000000=" + key(1)},
			[]string{
				"RELAYER_PRIVATE_KEY_0: is missing, but there is RELAYER_PRIVATE_KEY_1: numbers begin at 0 and have no gaps",
				"RELAYER_PRIVATE_KEY_2: and all up to RELAYER_PRIVATE_KEY_1999999 are missing, but there is RELAYER_PRIVATE_KEY_2000000: numbers begin at 0 and have no gaps",
			},
		},
		"names that are no numbers": {
			[]string{"RELAYER_PRIVATE_KEY_00=" + key(0), "RELAYER_PRIVATE_KEY_" + key(1) + "=x", "RELAYER_PRIVATE_KEY_0=" + key(2)},
			[]string{
				"RELAYER_PRIVATE_KEY_00: is none of RELAYER_PRIVATE_KEY_0, RELAYER_PRIVATE_KEY_1 and so on",
				"RELAYER_PRIVATE_KEY_…: is none of RELAYER_PRIVATE_KEY_0, RELAYER_PRIVATE_KEY_1 and so on",
			},
		},
		"malformed keys": {
			[]string{
				"RELAYER_PRIVATE_KEY_0=" + key(0)[:60], "RELAYER_PRIVATE_KEY_1=" + key(1) + "0", "RELAYER_PRIVATE_KEY_2=" + key(2)[:65] + "g",
				"RELAYER_PRIVATE_KEY_3=0x" + strings.Repeat("0", 64), "RELAYER_PRIVATE_KEY_4=" + order, "RELAYER_PRIVATE_KEY_5=0x",
			},
			[]string{
				"RELAYER_PRIVATE_KEY_0: " + malformed, "RELAYER_PRIVATE_KEY_1: " + malformed, "RELAYER_PRIVATE_KEY_2: " + malformed,
				"RELAYER_PRIVATE_KEY_3: " + malformed, "RELAYER_PRIVATE_KEY_4: " + malformed, "RELAYER_PRIVATE_KEY_5: " + malformed,
			},
		},
		"the same key twice": {
			[]string{"RELAYER_PRIVATE_KEY_0=" + key(0), "RELAYER_PRIVATE_KEY_1=" + key(1), "RELAYER_PRIVATE_KEY_2=" + strings.ToUpper(key(0)[2:])},
			[]string{"RELAYER_PRIVATE_KEY_2: is the same key as RELAYER_PRIVATE_KEY_0 (address " + k[0].Address.Hex() + ")"},
		},
		"no JSON":       {array("[" + key(0) + "]"), []string{"RELAYER_PRIVATE_KEYS_JSON: is not valid JSON"}},
		"no array":      {array(`{"a":"` + key(0) + `"}`), []string{`RELAYER_PRIVATE_KEYS_JSON: is not an array: it takes ["0x…", …] or [{"privateKey": "0x…"}, …]`}},
		"null":          {array("null"), []string{`RELAYER_PRIVATE_KEYS_JSON: is not an array: it takes ["0x…", …] or [{"privateKey": "0x…"}, …]`}},
		"an empty list": {array("[]"), []string{"RELAYER_PRIVATE_KEYS_JSON: is an array of no keys"}},
		"elements": {
			array(`[7, null, {}, {"` + key(0) + `":"x"}, {"privateKey":[]}, ["x"], {"PrivateKey":"` + key(1) + `"},
				{"privateKey":"` + key(2) + `","privateKey":"` + key(3) + `"}, {"privateKey":"` + key(2) + `","address":"` + k[3].Address.Hex() + `"},
				{"privateKey":"` + key(2) + `","address":"` + key(2) + `"}, "short", {"privateKey":"` + order + `","address":"` + k[3].Address.Hex() + `"}]`),
			[]string{
				"RELAYER_PRIVATE_KEYS_JSON[0]: " + shape, "RELAYER_PRIVATE_KEYS_JSON[1]: " + shape, "RELAYER_PRIVATE_KEYS_JSON[2]: " + shape,
				"RELAYER_PRIVATE_KEYS_JSON[3]: " + shape, "RELAYER_PRIVATE_KEYS_JSON[4]: " + shape, "RELAYER_PRIVATE_KEYS_JSON[5]: " + shape,
				"RELAYER_PRIVATE_KEYS_JSON[6]: " + shape, "RELAYER_PRIVATE_KEYS_JSON[7]: has privateKey twice",
				"RELAYER_PRIVATE_KEYS_JSON[8]: is the key of " + k[2].Address.Hex() + ", not of " + k[3].Address.Hex() + " beside it",
				"RELAYER_PRIVATE_KEYS_JSON[9]: its address is not an address: it takes 40 hex digits, with or without 0x",
				"RELAYER_PRIVATE_KEYS_JSON[10]: " + malformed, "RELAYER_PRIVATE_KEYS_JSON[11]: " + malformed,
			},
		},
		"too large": {array(`["` + strings.Repeat(" ", 1<<20) + `"]`), []string{"RELAYER_PRIVATE_KEYS_JSON: is larger than 1048576 bytes"}},
		"off the list": {
			[]string{"RELAYER_PRIVATE_KEY_0=" + key(0), "RELAYER_PRIVATE_KEY_1=" + key(1), "RELAYER_ALLOWED_ADDRESSES=" + k[1].Address.Hex()},
			[]string{"RELAYER_PRIVATE_KEY_0: its address " + k[0].Address.Hex() + " is not in RELAYER_ALLOWED_ADDRESSES"},
		},
		"a wrong list": {
			[]string{"RELAYER_PRIVATE_KEY_0=" + key(0), "RELAYER_ALLOWED_ADDRESSES=0x12," + key(1) + ",0xD8dA6BF26964aF9D7eEd9e03E53415D37aA96045,0xd8dA6BF26964aF9D7eEd9e03E53415D37aA96045"},
			[]string{
				"RELAYER_ALLOWED_ADDRESSES[0]: is not an address: it takes 40 hex digits, with or without 0x",
				"RELAYER_ALLOWED_ADDRESSES[1]: is not an address: it takes 40 hex digits, with or without 0x",
				"RELAYER_ALLOWED_ADDRESSES[2]: the address's checksum is wrong: a character was mistyped, or write all in lower case",
			},
		},
		"a list of commas": {
			[]string{"RELAYER_PRIVATE_KEY_0=" + key(0), "RELAYER_ALLOWED_ADDRESSES=,"},
			[]string{"RELAYER_ALLOWED_ADDRESSES: holds no address"},
		},
		"files": {
			[]string{
				"RELAYER_PRIVATE_KEY_0_FILE=" + missing, "RELAYER_PRIVATE_KEY_1_FILE=" + key(1), "RELAYER_PRIVATE_KEY_2_FILE=" + empty,
				"RELAYER_PRIVATE_KEY_3_FILE=" + large, "RELAYER_PRIVATE_KEY_4_FILE=" + folder, "RELAYER_PRIVATE_KEY_5_FILE=" + group,
			},
			[]string{
				"RELAYER_PRIVATE_KEY_0_FILE: the file it names: no such file or directory",
				"RELAYER_PRIVATE_KEY_1_FILE: the file it names: no such file or directory",
				"RELAYER_PRIVATE_KEY_2_FILE: " + empty + " is empty",
				"RELAYER_PRIVATE_KEY_3_FILE: " + large + " is larger than 4096 bytes",
				"RELAYER_PRIVATE_KEY_4_FILE: " + folder + " is not a regular file",
				"RELAYER_PRIVATE_KEY_5_FILE: " + group + " may be written by others than its owner, who choose the key then; chmod go-w it",
			},
		},
		"no folder": {
			[]string{"RELAYER_KEYSTORE_DIR=" + missing, "RELAYER_KEYSTORE_PASSWORD=" + password},
			[]string{"RELAYER_KEYSTORE_DIR: the folder it names: no such file or directory"},
		},
		"a folder without keys, nor a password": {
			[]string{"RELAYER_KEYSTORE_DIR=" + folder},
			[]string{
				"RELAYER_KEYSTORE_DIR: " + folder + " holds no relayer-0.json, relayer-1.json and so on",
				"RELAYER_KEYSTORE_DIR: a keystore takes a password; give RELAYER_KEYSTORE_PASSWORD_FILE",
			},
		},
		"a password without keystore": {
			[]string{"RELAYER_PRIVATE_KEY_0=" + key(0), "RELAYER_KEYSTORE_PASSWORD=" + password},
			[]string{"RELAYER_KEYSTORE_PASSWORD: is a password without a keystore; give RELAYER_KEYSTORE_DIR too"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ring, log, err := load(t, c.environ...)
			require.Nil(t, ring)
			require.Empty(t, log)
			requireProblems(t, err, c.want...)
			require.Equal(t, c.environ == nil, errors.Is(err, signer.ErrNoKeys))
			requireNothingOf(t, err.Error(), k...)
			requireNothingOf(t, fmt.Sprintf("%+v %#v", err, err), k...)
			require.NotContains(t, err.Error(), password)
		})
	}
}

func requireProblems(t *testing.T, err error, want ...string) {
	t.Helper()
	var faults *signer.Error
	require.ErrorAs(t, err, &faults)
	var got []string
	for _, p := range faults.Problems {
		got = append(got, p.String())
	}
	require.Equal(t, want, got)
	if len(want) == 1 {
		require.EqualError(t, err, "load keys: "+want[0])
	} else {
		require.EqualError(t, err, fmt.Sprintf("load keys: %d problems\n  - %s", len(want), strings.Join(want, "\n  - ")))
	}
}

func TestLoad_FileReadableByOthers_Warns(t *testing.T) {
	t.Parallel()
	k := signertest.Keys(t, "readable", 1)
	name := file(t, k[0].Hex(), 0o444)
	ring, log, err := load(t, "RELAYER_PRIVATE_KEY_0_FILE="+name)
	require.NoError(t, err)
	requireRing(t, ring, k...)
	require.Contains(t, log, `level=WARN msg="secret file is readable by group or others" file=`+name+" variable=RELAYER_PRIVATE_KEY_0_FILE mode=-r--r--r--")
	requireNothingOf(t, log, k...)
}

func TestLoad_AllowedAddressWithoutKey_Warns(t *testing.T) {
	t.Parallel()
	k := signertest.Keys(t, "allowed", 2)
	ring, log, err := load(t, "RELAYER_PRIVATE_KEY_0="+k[0].Hex(), "RELAYER_ALLOWED_ADDRESSES="+k[0].Address.Hex()+" "+k[1].Address.Hex())
	require.NoError(t, err)
	requireRing(t, ring, k[0])
	require.Equal(t, 1, strings.Count(log, "\n"))
	require.Contains(t, log, `msg="an allowed address has no key" address=`+k[1].Address.Hex())
}

func TestLoad_AllowedAddressHasKeyElsewhere_DoesNotWarn(t *testing.T) {
	t.Parallel()
	k := signertest.Keys(t, "elsewhere", 3)
	var log bytes.Buffer
	_, err := signer.Load(t.Context(), signer.Source{
		Environ: []string{"RELAYER_PRIVATE_KEY_0=" + k[0].Hex(), "RELAYER_ALLOWED_ADDRESSES=" + k[0].Address.Hex() + " " + k[1].Address.Hex()},
		Log:     slog.New(slog.NewTextHandler(&log, nil)), Elsewhere: []common.Address{k[1].Address, k[2].Address},
	})
	require.NoError(t, err)
	require.Empty(t, log.String())
}

func TestLoad_InvalidKeystore_NamesFile(t *testing.T) {
	t.Parallel()
	k := signertest.Keys(t, "keystore faults", 2)
	cheap := t.TempDir()
	signertest.WriteKeystore(t, cheap, password, k[0])
	good, err := os.ReadFile(filepath.Join(cheap, "relayer-0.json"))
	require.NoError(t, err)
	// edit changes one member of a valid file.
	edit := func(path string, value any) string {
		var content map[string]any
		require.NoError(t, json.Unmarshal(good, &content))
		at, names := content, strings.Split(path, ".")
		for _, name := range names[:len(names)-1] {
			at = at[name].(map[string]any)
		}
		at[names[len(names)-1]] = value
		text, err := json.Marshal(content)
		require.NoError(t, err)
		return string(text)
	}
	const none = "is not a keystore file of version 3"
	const costly = "its password function costs too much: more than 256 MiB, or several times geth's standard work"
	long, err := keystore.EncryptDataV3(make([]byte, 32), []byte(password), 2, 1)
	require.NoError(t, err)
	const wrong = "the password does not open it, or it is damaged"
	unread := []struct{ content, want string }{
		{"{", none},
		{edit("version", 1), none},
		{edit("version", "1"), none},
		{edit("crypto.cipher", "aes-256-ctr"), none},
		{edit("crypto.cipherparams.iv", "00"), none},
		{edit("crypto.ciphertext", "00"), none},
		{edit("crypto.mac", "zz"), none},
		{edit("crypto.kdf", "argon2"), none},
		{edit("crypto.kdfparams", nil), none},
		{edit("crypto.kdfparams.salt", 7), none},
		{edit("crypto.kdfparams.dklen", 16), none},
		{edit("crypto.kdfparams.n", 3), none},
		{edit("crypto.kdfparams.n", -2), none},
		{edit("crypto.kdfparams.r", 0), none},
		{edit("address", "0x12"), none},
		{edit("crypto.kdfparams.n", 1<<19), costly},
		{edit("crypto.kdfparams.n", 1<<62), costly},
		{edit("crypto.kdfparams.r", 1<<40), costly},
		{edit("crypto.kdfparams.p", 1<<40), costly},
		{edit("crypto.kdf", "pbkdf2"), none},
		{strings.Replace(edit("crypto.kdfparams", map[string]any{"c": 1 << 30, "prf": "hmac-sha256", "dklen": 32, "salt": "00"}), `"scrypt"`, `"pbkdf2"`, 1), costly},
	}
	unopened := []struct{ content, want string }{
		{string(good), ""},
		{strings.Replace(string(good), `"n":2`, `"n":1073741824,"N":4`, 1), wrong}, // only the checked N is used
		{strings.Replace(edit("crypto.kdfparams", map[string]any{"c": 1, "n": 1 << 30, "r": 1, "prf": "hmac-sha256", "dklen": 32, "salt": "00"}), `"scrypt"`, `"pbkdf2"`, 1), wrong},
		{edit("crypto.kdfparams.salt", "00"), wrong},
		{edit("address", k[1].Address.Hex()), "holds the key of " + k[0].Address.Hex() + ", but names " + k[1].Address.Hex()},
		{edit("crypto", long), malformed},
	}
	write := func(cases []struct{ content, want string }) (source signer.Source, want []string) {
		folder := t.TempDir()
		for i, c := range cases {
			name := filepath.Join(folder, fmt.Sprintf("relayer-%d.json", i))
			require.NoError(t, os.WriteFile(name, []byte(c.content), 0o600))
			if c.want != "" {
				want = append(want, name+": "+c.want)
			}
		}
		return signer.Source{Environ: []string{"RELAYER_KEYSTORE_DIR=" + folder, "RELAYER_KEYSTORE_PASSWORD=" + password}}, want
	}
	source, want := write(unread)
	_, err = signer.Read(source)
	requireProblems(t, err, want...)
	requireNothingOf(t, err.Error(), k...)

	source, want = write(unopened)
	keys, err := signer.Read(source)
	require.NoError(t, err, "no file is opened")
	require.Nil(t, keys.Ring())
	ring, err := keys.Open(t.Context())
	require.Nil(t, ring)
	requireProblems(t, err, want...)
	requireNothingOf(t, err.Error(), k...)
	source.Environ = append(source.Environ, "RELAYER_ALLOWED_ADDRESSES=0x12")
	_, err = signer.Read(source)
	requireProblems(t, err, "RELAYER_ALLOWED_ADDRESSES[0]: is not an address: it takes 40 hex digits, with or without 0x")

	// Problems of file names and gaps, with otherwise valid keys.
	for _, c := range []struct{ from, to, want string }{
		{"relayer-0.json", "relayer-01.json", "relayer-01.json: is none of relayer-0.json, relayer-1.json and so on"},
		{"relayer-1.json", "relayer-3.json", "relayer-1.json: and all up to %s/relayer-2.json are missing, but there is %[1]s/relayer-3.json: numbers begin at 0 and have no gaps"},
	} {
		folder := t.TempDir()
		signertest.WriteKeystore(t, folder, password, k...)
		require.NoError(t, os.Rename(filepath.Join(folder, c.from), filepath.Join(folder, c.to)))
		_, _, err = load(t, "RELAYER_KEYSTORE_DIR="+folder, "RELAYER_KEYSTORE_PASSWORD="+password)
		text := c.want
		if strings.Contains(text, "%") {
			text = fmt.Sprintf(text, folder)
		}
		require.ErrorContains(t, err, folder+"/"+text)
	}
}

func TestLoad_WrongPassword_NamesFileNotPassword(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	signertest.WriteKeystore(t, folder, password, signertest.Keys(t, "password", 1)...)
	_, log, err := load(t, "RELAYER_KEYSTORE_DIR="+folder, "RELAYER_KEYSTORE_PASSWORD=Tr0ub4dor")
	requireProblems(t, err, filepath.Join(folder, "relayer-0.json")+": the password does not open it, or it is damaged")
	require.NotContains(t, err.Error()+log, "Tr0ub4dor")
	keys, err := signer.Read(signer.Source{Environ: []string{"RELAYER_KEYSTORE_DIR=" + folder, "RELAYER_KEYSTORE_PASSWORD=Tr0ub4dor"}})
	require.NoError(t, err)
	require.NotContains(t, reachable(&keys), "Tr0ub4dor")

	_, _, err = load(t, "RELAYER_KEYSTORE_DIR="+folder, "RELAYER_KEYSTORE_PASSWORD_FILE=Tr0ub4dor")
	requireProblems(t, err, "RELAYER_KEYSTORE_PASSWORD_FILE: the file it names: no such file or directory")
}

func TestLoad_GethKeystore(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	account, err := keystore.StoreKey(folder, password, keystore.LightScryptN, keystore.LightScryptP)
	require.NoError(t, err)
	require.NoError(t, os.Rename(account.URL.Path, filepath.Join(folder, "relayer-0.json")))
	ring, log, err := load(t, "RELAYER_KEYSTORE_DIR="+folder, "RELAYER_KEYSTORE_PASSWORD="+password)
	require.NoError(t, err)
	require.Empty(t, log)
	require.Equal(t, []common.Address{account.Address}, ring.Addresses())
}

func TestLoad_ContextCanceled_Returns(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	signertest.WriteKeystore(t, folder, password, signertest.Keys(t, "ended", 3)...)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := signer.Load(ctx, signer.Source{Environ: []string{"RELAYER_KEYSTORE_DIR=" + folder, "RELAYER_KEYSTORE_PASSWORD=" + password}})
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestRing_SortsAndFinds(t *testing.T) {
	t.Parallel()
	keys := signertest.Keys(t, "ring", 5)
	ring, err := signer.New(signertest.Signers(keys)...)
	require.NoError(t, err)
	addresses := ring.Addresses()
	for i := range len(addresses) - 1 {
		require.Negative(t, addresses[i].Cmp(addresses[i+1]))
	}
	addresses[0] = common.Address{}
	require.NotZero(t, ring.Addresses()[0])
	_, ok := ring.Signer(crypto.CreateAddress(common.Address{}, 1))
	require.False(t, ok)

	_, err = signer.New()
	require.ErrorIs(t, err, signer.ErrNoKeys)
	_, err = signer.New(keys[0].Signer, nil)
	require.EqualError(t, err, "signer 1 is nil")
	_, err = signer.New(keys[0].Signer, signertest.NewFake(keys[0].Signer))
	require.EqualError(t, err, "two signers of "+keys[0].Address.Hex())
}
