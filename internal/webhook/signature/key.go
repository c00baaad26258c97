package signature

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// MinKeyLength is the minimum number of characters of a key. The base64 after "whsec_" must decode to at least 24
// bytes, as Standard Webhooks require.
const MinKeyLength = 32

const (
	standardPrefix   = "whsec_"
	minStandardBytes = 24
	hidden           = "(hidden)"
)

// Key is a signing key. Its print and format methods hide it.
type Key struct {
	// A function, because fmt follows pointers: in an unexported field it may not call Key's methods.
	reveal func() secret
}

type secret struct {
	raw      []byte // for X-Signature
	standard *standardwebhooks.Webhook
}

// NewKey parses a configured key. Its errors do not contain the key.
func NewKey(text string) (Key, error) {
	if len(text) < MinKeyLength {
		return Key{}, fmt.Errorf("signing key has %d characters and needs at least %d", len(text), MinKeyLength)
	}
	if strings.TrimSpace(text) != text {
		return Key{}, errors.New("signing key begins or ends with white space")
	}
	raw, standard := []byte(text), []byte(text)
	if encoded, ok := strings.CutPrefix(text, standardPrefix); ok {
		decoded, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return Key{}, errors.New("signing key is not base64 after " + standardPrefix)
		}
		if len(decoded) < minStandardBytes {
			return Key{}, fmt.Errorf("signing key stands for %d bytes and needs at least %d", len(decoded), minStandardBytes)
		}
		standard = decoded
	}
	webhook, _ := standardwebhooks.NewWebhookRaw(standard) // it accepts any bytes
	return Key{func() secret { return secret{raw: raw, standard: webhook} }}, nil
}

// IsZero reports whether there is no key.
func (k Key) IsZero() bool { return k.reveal == nil }

// String hides the key.
func (Key) String() string { return hidden }

// GoString hides the key.
func (Key) GoString() string { return hidden }

// Format hides the key from every verb.
func (Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }

// LogValue hides the key.
func (Key) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText hides the key.
func (Key) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// digest returns the HMAC-SHA256 of the body.
func digest(key, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(body)
	return mac.Sum(nil)
}
