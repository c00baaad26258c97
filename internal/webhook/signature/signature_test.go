package signature

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	secretA = "first-key-first-key-first-key-first"
	secretB = "other-key-other-key-other-key-other"
)

func key(t testing.TB, secret string) Key {
	t.Helper()
	k, err := NewKey(secret)
	require.NoError(t, err)
	return k
}

// attempt is the signing time of these tests' requests.
var attempt = time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)

// body has content that JSON libraries often rewrite: escapes, other scripts, numbers beyond a float.
var body = []byte(`{"id":"d1","payload":{"trader":"Łódź 東京 \u00e9 </script>","value":115792089237316195423570985008687907853269984665640564039457584007913129639935},"timestamp":"2026-11-22T10:00:00.000000Z"}`)

// The digests were computed by OpenSSL: printf %s "$body" | openssl dgst -sha256 -hmac "$key" -binary | base64.
func TestSign_EqualsOtherImplementations(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	// The example of Standard Webhooks' specification.
	Sign(h, []Key{key(t, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")}, "msg_p5jXN8AQM9LWM0D4loKWxJek",
		time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	require.Equal(t, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", h.Get(HeaderSignature))

	h = http.Header{}
	Sign(h, []Key{key(t, secretA)}, "d1", attempt, body)
	require.Equal(t, "dGHAD43RQSDxUO6GosQ5nTqY3V7FJnmWggKSvybD0p4=", h.Get(HeaderOpenZeppelin))
}

func TestSign_SeveralKeys_AllSignStandardFirstSignsOpenZeppelin(t *testing.T) {
	t.Parallel()
	a, b := key(t, secretA), key(t, secretB)
	h := http.Header{}
	Sign(h, []Key{a, b}, "d1", attempt, body)
	for _, k := range []Key{a, b} {
		v, err := Verify([]Key{k}, h, body, attempt, 0)
		require.NoError(t, err)
		require.Equal(t, Verified{Dialect: StandardWebhooks, ID: "d1", At: time.Unix(attempt.Unix(), 0)}, v)
	}
	h.Del(HeaderSignature)
	v, err := Verify([]Key{b, a}, h, body, attempt, 0)
	require.NoError(t, err)
	require.Equal(t, Verified{Dialect: OpenZeppelin, At: attempt}, v)
	_, err = Verify([]Key{b}, h, body, attempt, 0)
	require.ErrorIs(t, err, ErrMismatch)
}

func TestVerify(t *testing.T) {
	t.Parallel()
	a, b := key(t, secretA), key(t, secretB)
	sum := digest(a.reveal().raw, body)
	oz := func(name, value string) http.Header { return http.Header{name: {value}} }
	standard := func(change func(http.Header)) http.Header {
		h := http.Header{}
		Sign(h, []Key{a}, "d1", attempt, body)
		h.Del(HeaderOpenZeppelin)
		change(h)
		return h
	}
	untimed := []byte(`{"ozRelayerTxId":"x"}`)
	signed := func(body []byte) http.Header {
		return oz(HeaderOpenZeppelin, base64.StdEncoding.EncodeToString(digest(a.reveal().raw, body)))
	}
	for name, test := range map[string]struct {
		keys      []Key
		header    http.Header
		body      []byte
		now       time.Time
		tolerance time.Duration
		want      error
	}{
		"X-Signature":               {header: oz(HeaderOpenZeppelin, base64.StdEncoding.EncodeToString(sum))},
		"x-oz-signature":            {header: oz(HeaderOpenZeppelinOld, base64.StdEncoding.EncodeToString(sum))},
		"in hex":                    {header: oz(HeaderOpenZeppelin, hex.EncodeToString(sum))},
		"in capital hex":            {header: oz(HeaderOpenZeppelin, strings.ToUpper(hex.EncodeToString(sum)))},
		"with the algorithm's name": {header: oz(HeaderOpenZeppelinOld, "sha256="+hex.EncodeToString(sum))},
		"second key":                {keys: []Key{b, a}, header: oz(HeaderOpenZeppelin, base64.StdEncoding.EncodeToString(sum))},
		"standard":                  {header: standard(func(http.Header) {})},
		"standard among others": {header: standard(func(h http.Header) {
			h.Set(HeaderSignature, "v1a,xx v1,yy v2,"+h.Get(HeaderSignature)[3:]+" "+h.Get(HeaderSignature))
		})},
		"no header":                {header: http.Header{}, want: ErrMissing},
		"only id and time":         {header: standard(func(h http.Header) { h.Del(HeaderSignature) }), want: ErrMissing},
		"other key":                {keys: []Key{b}, header: oz(HeaderOpenZeppelin, base64.StdEncoding.EncodeToString(sum)), want: ErrMismatch},
		"no key":                   {keys: []Key{}, header: oz(HeaderOpenZeppelin, base64.StdEncoding.EncodeToString(digest(nil, body))), want: ErrMismatch},
		"zero key":                 {keys: []Key{{}}, header: oz(HeaderOpenZeppelin, base64.StdEncoding.EncodeToString(digest(nil, body))), want: ErrMismatch},
		"empty signature":          {header: oz(HeaderOpenZeppelin, ""), want: ErrMismatch},
		"half a signature":         {header: oz(HeaderOpenZeppelin, base64.StdEncoding.EncodeToString(sum[:16])), want: ErrMismatch},
		"other body":               {header: oz(HeaderOpenZeppelin, base64.StdEncoding.EncodeToString(sum)), body: append([]byte(" "), body...), want: ErrMismatch},
		"standard, other id":       {header: standard(func(h http.Header) { h.Set(HeaderID, "d2") }), want: ErrMismatch},
		"standard, no id":          {header: standard(func(h http.Header) { h.Del(HeaderID) }), want: ErrMismatch},
		"standard, other time":     {header: standard(func(h http.Header) { h.Set(HeaderTimestamp, "1") }), want: ErrMismatch},
		"standard, malformed time": {header: standard(func(h http.Header) { h.Set(HeaderTimestamp, "today") }), want: ErrMismatch},
		"standard, other version":  {header: standard(func(h http.Header) { h.Set(HeaderSignature, "v2,"+h.Get(HeaderSignature)[3:]) }), want: ErrMismatch},
		"standard wrong, X-Signature right": {header: standard(func(h http.Header) {
			h.Set(HeaderOpenZeppelin, base64.StdEncoding.EncodeToString(sum))
			h.Set(HeaderID, "d2")
		}), want: ErrMismatch},
		"standard, too many before it": {header: standard(func(h http.Header) {
			h.Set(HeaderSignature, strings.Repeat("v1,xx ", maxSignatures)+h.Get(HeaderSignature))
		}), want: ErrMismatch},
		"old":                        {header: standard(func(http.Header) {}), now: attempt.Add(DefaultTolerance + 2*time.Second), want: ErrTime},
		"from the future":            {header: standard(func(http.Header) {}), now: attempt.Add(-DefaultTolerance - 2*time.Second), want: ErrTime},
		"old, by the body":           {header: signed(body), now: attempt.Add(DefaultTolerance + 2*time.Second), want: ErrTime},
		"old, within the tolerance":  {header: signed(body), now: attempt.Add(time.Hour), tolerance: 2 * time.Hour},
		"old, any time allowed":      {header: signed(body), now: attempt.Add(1000 * time.Hour), tolerance: -1},
		"no time in the body":        {header: signed(untimed), body: untimed, now: attempt.Add(1000 * time.Hour)},
		"malformed time in the body": {header: signed([]byte(`{"timestamp":5}`)), body: []byte(`{"timestamp":5}`)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.keys == nil {
				test.keys = []Key{a}
			}
			if test.body == nil {
				test.body = body
			}
			if test.now.IsZero() {
				test.now = attempt
			}
			_, err := Verify(test.keys, test.header, test.body, test.now, test.tolerance)
			require.ErrorIs(t, err, test.want)
		})
	}
}

func TestNewKey_Invalid_Fails(t *testing.T) {
	t.Parallel()
	for name, secret := range map[string]string{
		"empty":                 "",
		"31 characters":         strings.Repeat("k", 31),
		"white space":           strings.Repeat("k", 40) + "\n",
		"not base64":            "whsec_" + strings.Repeat("!", 40),
		"too few bytes encoded": "whsec_" + base64.StdEncoding.EncodeToString([]byte("twenty bytes are few")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, err := NewKey(secret)
			require.Error(t, err)
			require.True(t, k.IsZero())
			if secret != "" {
				require.NotContains(t, err.Error(), secret)
			}
		})
	}
}

func TestKey_Printed_IsNotShown(t *testing.T) {
	t.Parallel()
	type holder struct{ Key, unexported Key }
	k := key(t, secretA)
	var out strings.Builder
	slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "key", k, "in", holder{k, k})
	slog.New(slog.NewTextHandler(&out, nil)).Info("m", "key", k, "in", holder{k, k})
	encoded, err := json.Marshal(holder{k, k})
	require.NoError(t, err)
	out.Write(encoded)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+verb+verb, k, holder{k, k}, &k)
	}
	require.NotContains(t, out.String(), secretA[:8])
	require.NotContains(t, out.String(), hex.EncodeToString([]byte(secretA[:8])))
	require.NotContains(t, out.String(), "102 105 114")
}
