package health

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode"
)

// maxQuoted is how much of a failing answer's body is looked through for a reason. The rest is read and dropped.
const maxQuoted = 4 << 10

// quotedReason returns the reason that the body of a failing answer gives: the string "reason" of a JSON object, as a
// relayer's /health has it. It is empty where there is none. The body may be cut, and is not to be trusted: what cannot
// be printed is replaced, because the reason reaches terminals, logs and Redis.
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

// repeatsSecret reports whether a service repeats the secret that its checks send.
func (p *prober) repeatsSecret(s string) bool {
	parts := strings.Fields(p.cfg.Auth.Value) // such as "Bearer" and a token
	return len(parts) > 0 && strings.Contains(s, parts[len(parts)-1])
}

// printable replaces white space by a blank and what cannot be printed, escape sequences included, by "?".
func printable(r rune) rune {
	switch {
	case unicode.IsSpace(r):
		return ' '
	case !unicode.IsPrint(r):
		return '?'
	}
	return r
}
