package apikey

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
)

// MinLength is the minimum length of an API key, in characters.
const MinLength = 32

// Role is what a key may do. Each role includes the later ones.
type Role uint8

// The roles.
const (
	Full      Role = iota // everything: also pause, sign, and cancel all pending transactions
	Submitter             // send, replace and cancel transactions
	Reader                // read, and call nodes
)

// roles maps the roles' names in a configuration; a key without one has all rights.
var roles = map[string]Role{"submit": Submitter, "read": Reader}

// Key is a caller's key, with its name: keys of one name are one caller, and have one role. To rotate a key, an operator
// adds the new one, callers switch to it, and the operator removes the old one. It never prints its key.
type Key struct {
	Name string // 1 to 64 letters, digits, dots, dashes and underscores: it is used in the store, in logs and metrics
	Key  string // at least [MinLength] visible ASCII characters
	Role Role
}

// Format prints the name, whatever the verb.
func (k Key) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, k.Name) }

// MarshalText returns the name.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.Name), nil }

// LogValue returns the name.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.Name) }

// Parse reads keys as name:key or name/role:key, where the role is read or submit, separated by commas or white space.
// Lines that begin with # are comments. It does not check the keys. Its error joins all entries that cannot be read, by
// number, without their text.
func Parse(s string) ([]Key, error) {
	var keys []Key
	var problems []error
	for line := range strings.Lines(s) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		for _, field := range strings.FieldsFunc(line, func(c rune) bool { return strings.ContainsRune(", \t\r\n", c) }) {
			name, key, ok := strings.Cut(field, ":")
			if !ok {
				problems = append(problems, fmt.Errorf("API key %d: not name:key", len(keys)+len(problems)+1))
				continue
			}
			name, word, given := strings.Cut(name, "/")
			role, known := roles[word]
			if given && !known {
				problems = append(problems, fmt.Errorf("API key %d: its role is neither read nor submit", len(keys)+len(problems)+1))
				continue
			}
			keys = append(keys, Key{Name: name, Key: key, Role: role})
		}
	}
	return keys, errors.Join(problems...)
}

// Check returns a joined error of all problems: keys too short, unnamed or duplicate, one name with two roles, or no
// keys at all. The error shows no key.
func Check(keys []Key) error {
	_, err := NewSet(keys)
	return err
}

// Set holds the hashes of keys.
type Set []struct {
	name string
	role Role
	hash [sha256.Size]byte
}

// NewSet returns the set of the keys. It fails as [Check] does.
func NewSet(keys []Key) (Set, error) {
	var problems []error
	if len(keys) == 0 {
		problems = append(problems, errors.New("no API key: no client could use the API"))
	}
	set := make(Set, len(keys))
	for i, k := range keys {
		set[i].name, set[i].role, set[i].hash = k.Name, k.Role, sha256.Sum256([]byte(k.Key))
		switch {
		case !isName(k.Name):
			problems = append(problems, fmt.Errorf("API key %d: its name must have 1 to 64 letters, digits, dots, dashes or underscores", i+1))
		case len(k.Key) < MinLength:
			problems = append(problems, fmt.Errorf("API key %d: has fewer than %d characters", i+1, MinLength))
		case !IsVisible(k.Key):
			problems = append(problems, fmt.Errorf("API key %d: must be visible ASCII", i+1))
		}
		// Keys are reported by number: if name and key were swapped, the name is the secret.
		for j, other := range set[:i] {
			if other.name == k.Name && other.role != k.Role {
				problems = append(problems, fmt.Errorf("API keys %d and %d have the same name and different roles", j+1, i+1))
			}
			if other.hash == set[i].hash {
				problems = append(problems, fmt.Errorf("API keys %d and %d are the same", j+1, i+1))
			}
		}
	}
	return set, errors.Join(problems...)
}

// Find returns the name and the role of a key; "" if it is not in the set. Its duration does not depend on the keys.
func (s Set) Find(key string) (name string, role Role) {
	hash := sha256.Sum256([]byte(key))
	found := -1
	for i := range s {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(hash[:], s[i].hash[:]), i, found)
	}
	if found < 0 {
		return "", Reader
	}
	return s[found].name, s[found].role
}

// Bearer returns the key of a request's Authorization header; "" if there is none, or more than one.
func Bearer(r *http.Request) string {
	headers := r.Header["Authorization"]
	if len(headers) != 1 {
		return ""
	}
	scheme, key, _ := strings.Cut(headers[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return key
}

func isName(s string) bool {
	for _, c := range []byte(s) {
		if c|0x20 < 'a' || c|0x20 > 'z' {
			if c < '0' || c > '9' {
				if c != '.' && c != '-' && c != '_' {
					return false
				}
			}
		}
	}
	return s != "" && len(s) <= 64
}

// IsVisible reports whether s is visible ASCII, without blanks.
func IsVisible(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}
