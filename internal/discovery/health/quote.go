package health

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode"
)

// maxQuoted is how much of a failing response's body is searched for a reason. The rest is read and dropped.
const maxQuoted = 4 << 10

// quotedReason returns the reason in the body of a failing response: the string "reason" of a JSON object, as in a
// relayer's /health. It returns an empty string if there is none. The body may be truncated and is untrusted.
// Unprintable characters are replaced, because the reason reaches terminals, logs and Redis.
func (p *prober) quotedReason(body []byte) string {
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return ""
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return ""
		}
		if key != "reason" {
			var skipped json.RawMessage
			if d.Decode(&skipped) != nil {
				return ""
			}
			continue
		}
		var reason string
		if d.Decode(&reason) != nil {
			return ""
		}
		return p.quote(reason)
	}
	return ""
}

// quote returns a text from a service in printable form, or an empty string if it contains a secret.
func (p *prober) quote(text string) string {
	if p.repeatsSecret(text) {
		return ""
	}
	return strings.TrimSpace(strings.Map(printable, text))
}

// repeatsSecret reports whether a text from a service contains the secret that its checks send, or a part of it.
func (p *prober) repeatsSecret(s string) bool {
	return slices.ContainsFunc(p.secrets, func(secret string) bool { return strings.Contains(s, secret) })
}

// minSecret is the length from which a part of an auth header's value counts as secret. Shorter parts, such as the
// name of a parameter, occur in innocent texts.
const minSecret = 4

// secrets returns the parts of an auth header's value that must not be quoted. With several words, the first one is
// the scheme, such as "Bearer". Each other word may be a secret, also without its quotation marks or the name of its
// parameter.
func secrets(value string) []string {
	words := strings.Fields(value)
	if len(words) == 0 {
		return nil
	}
	last := len(words) - 1
	all := []string{words[last]} // also if it is short
	for _, word := range words[min(1, last):] {
		parts := append(strings.FieldsFunc(word, func(r rune) bool { return strings.ContainsRune(`=,;:"'`, r) }), word)
		for _, part := range parts {
			if len(part) >= minSecret {
				all = append(all, part)
			}
		}
	}
	return all
}

// printable replaces white space with a blank, and unprintable characters, including escape sequences, with "?".
func printable(r rune) rune {
	switch {
	case unicode.IsSpace(r):
		return ' '
	case !unicode.IsPrint(r):
		return '?'
	}
	return r
}
