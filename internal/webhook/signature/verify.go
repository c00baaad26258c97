package signature

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Errors of a verification. A receiver answers 401 to each of them.
var (
	// ErrMissing means that the request has no header of either dialect.
	ErrMissing = errors.New("webhook carries no signature")
	// ErrMismatch means that no signature is one of the keys' over this body.
	ErrMismatch = errors.New("webhook signature does not match")
	// ErrTime means that the signature is valid, and its signed time is too far from now. The request may be a replay
	// by an attacker who recorded it.
	ErrTime = errors.New("webhook is too old, or from the future")
)

// DefaultTolerance is how far a webhook's time may be from now by default.
const DefaultTolerance = 5 * time.Minute

// maxSignatures limits the work for one request.
const maxSignatures = 16

// Dialect is the set of headers by which a webhook was verified.
type Dialect string

// The dialects.
const (
	OpenZeppelin     Dialect = "openzeppelin"
	StandardWebhooks Dialect = "standard-webhooks"
)

// Verified holds the values that a valid signature covers besides the body.
type Verified struct {
	Dialect Dialect
	// ID is the id of the delivery, the same in each attempt. Empty in OpenZeppelin's dialect, where the body holds it.
	ID string
	// At is the time of the attempt. Zero if the sender gave none.
	At time.Time
}

// Given reports whether a request has a header of either dialect. Without one, Verify fails whatever the body.
func Given(h http.Header) bool {
	return h.Get(HeaderSignature) != "" || h.Get(HeaderOpenZeppelin) != "" || h.Get(HeaderOpenZeppelinOld) != ""
}

// Verify checks a request's headers and raw body against the keys, any of which may have signed. If the request has
// headers of Standard Webhooks, they must be valid, because they cover more. Otherwise X-Signature or x-oz-signature
// must be valid.
//
// Verify rejects a time further from now than the tolerance; 0 means [DefaultTolerance], less than 0 any time. In
// OpenZeppelin's dialect the time is the one in the body. A body without a time is accepted, because older senders have
// none. With [ErrTime], Verify returns what the signature covers, too: the receiver may know the sender's clock.
//
// The duration of Verify does not reveal how much of a wrong signature matches.
func Verify(keys []Key, h http.Header, body []byte, now time.Time, tolerance time.Duration) (Verified, error) {
	if tolerance == 0 {
		tolerance = DefaultTolerance
	}
	v, err := verify(keys, h, body)
	if err != nil {
		return Verified{}, err
	}
	if off := now.Sub(v.At).Abs(); tolerance > 0 && !v.At.IsZero() && off > tolerance {
		return v, fmt.Errorf("%w: %v off, %v are allowed", ErrTime, off.Round(time.Second), tolerance)
	}
	return v, nil
}

func verify(keys []Key, h http.Header, body []byte) (Verified, error) {
	if given := h.Get(HeaderSignature); given != "" {
		return verifyStandard(keys, h, given, body)
	}
	given := append(h.Values(HeaderOpenZeppelin), h.Values(HeaderOpenZeppelinOld)...)
	if len(given) == 0 {
		return Verified{}, ErrMissing
	}
	var claimed [][]byte
	for _, text := range given[:min(len(given), maxSignatures)] {
		if sum, ok := decode(text); ok {
			claimed = append(claimed, sum)
		}
	}
	for _, k := range keys {
		if k.IsZero() {
			continue
		}
		sum := digest(k.reveal().raw, body)
		if slices.ContainsFunc(claimed, func(c []byte) bool { return hmac.Equal(c, sum) }) {
			return Verified{Dialect: OpenZeppelin, At: timeIn(body)}, nil
		}
	}
	return Verified{}, ErrMismatch
}

func verifyStandard(keys []Key, h http.Header, given string, body []byte) (Verified, error) {
	id, timestamp := h.Get(HeaderID), h.Get(HeaderTimestamp)
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || id == "" {
		return Verified{}, fmt.Errorf("%w: %s or %s is missing or malformed", ErrMismatch, HeaderID, HeaderTimestamp)
	}
	// The library ignores other versions, such as v1a with its asymmetric keys.
	signatures := strings.Fields(given)
	limited := http.Header{
		HeaderID: {id}, HeaderTimestamp: {timestamp},
		HeaderSignature: {strings.Join(signatures[:min(len(signatures), maxSignatures)], " ")},
	}
	for _, k := range keys {
		if !k.IsZero() && k.reveal().standard.VerifyIgnoringTimestamp(body, limited) == nil {
			return Verified{Dialect: StandardWebhooks, ID: id, At: time.Unix(seconds, 0)}, nil
		}
	}
	return Verified{}, ErrMismatch
}

// decode decodes a digest in base64 or hex.
func decode(text string) ([]byte, bool) {
	text = strings.TrimPrefix(strings.TrimSpace(text), "sha256=")
	if len(text) == hex.EncodedLen(sha256.Size) {
		sum, err := hex.DecodeString(text)
		return sum, err == nil
	}
	sum, err := base64.StdEncoding.DecodeString(text)
	return sum, err == nil && len(sum) == sha256.Size
}

// timeIn returns the timestamp in the body; zero if there is none. The body is authentic by now, so its sender omitted
// the time.
func timeIn(body []byte) time.Time {
	var stated struct {
		Timestamp time.Time `json:"timestamp"`
	}
	if err := json.Unmarshal(body, &stated); err != nil {
		return time.Time{}
	}
	return stated.Timestamp
}
