package health

import (
	"bytes"
	"encoding/json"
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
		if d.Decode(&reason) != nil || p.repeatsSecret(reason) {
			return ""
		}
		return strings.TrimSpace(strings.Map(printable, reason))
	}
	return ""
}

// repeatsSecret reports whether a text from a service contains the secret that its checks send.
func (p *prober) repeatsSecret(s string) bool {
	parts := strings.Fields(p.cfg.Auth.Value) // such as "Bearer" and a token
	return len(parts) > 0 && strings.Contains(s, parts[len(parts)-1])
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
