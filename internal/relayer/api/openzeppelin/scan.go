package openzeppelin

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// These are the bounds of an object in a request, far above what the API uses.
const (
	maxDepth  = 32
	maxFields = 64
)

// object returns the JSON object of a body. The other functions of this file rely on its checks.
func object(body []byte) ([]byte, error) {
	body, err := wellFormed(body)
	if err == nil && body[0] != '{' {
		err = relayer.Invalidf("", "the body must be a JSON object")
	}
	return body, err
}

// wellFormed rejects a body that is not one JSON value in UTF-8, or is nested too deep.
func wellFormed(body []byte) ([]byte, error) {
	if !utf8.Valid(body) {
		return nil, relayer.Invalidf("", "the body is not UTF-8")
	}
	if !json.Valid(body) {
		var raw json.RawMessage
		return nil, relayer.Invalidf("", "the body is not JSON: %v", json.Unmarshal(body, &raw))
	}
	body = trim(body)
	depth := 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '"':
			i += stringLen(body[i:]) - 1
		case '{', '[':
			if depth++; depth > maxDepth {
				return nil, relayer.Invalidf("", "the body is nested deeper than %d levels", maxDepth)
			}
		case '}', ']':
			depth--
		}
	}
	return body, nil
}

// elements calls fn for each element of a well-formed array.
func elements(array []byte, fn func(value []byte) error) error {
	rest := trim(array[1:])
	for rest[0] != ']' {
		size := valueLen(rest)
		if err := fn(rest[:size]); err != nil {
			return err
		}
		if rest = trim(rest[size:]); rest[0] == ',' {
			rest = trim(rest[1:])
		}
	}
	return nil
}

// fields calls fn for each field of a well-formed object. A name given twice is an error.
func fields(object []byte, path string, fn func(name, value []byte) error) error {
	var seen [maxFields][]byte
	rest := trim(object[1:])
	for n := 0; rest[0] != '}'; n++ {
		size := stringLen(rest)
		name := rest[1 : size-1]
		if bytes.IndexByte(name, '\\') >= 0 {
			s, err := text(path, rest[:size])
			if err != nil {
				return err
			}
			name = []byte(s)
		}
		if n == maxFields {
			return relayer.Invalidf(path, "more than %d fields", maxFields)
		}
		for _, other := range seen[:n] {
			if bytes.Equal(other, name) {
				return relayer.Invalidf(join(path, clip(name)), "is there twice")
			}
		}
		seen[n] = name
		rest = trim(trim(rest[size:])[1:]) // the colon
		size = valueLen(rest)
		if err := fn(name, rest[:size]); err != nil {
			return err
		}
		if rest = trim(rest[size:]); rest[0] == ',' {
			rest = trim(rest[1:])
		}
	}
	return nil
}

// text returns the value of a string literal. A string that Postgres cannot store is an error.
func text(field string, literal []byte) (string, error) {
	if literal[0] != '"' {
		return "", relayer.Invalidf(field, "must be a string, not %s", clip(literal))
	}
	inside := literal[1 : len(literal)-1]
	if bytes.IndexByte(inside, '\\') < 0 {
		return string(inside), nil
	}
	var s string
	if err := json.Unmarshal(literal, &s); err != nil {
		return "", relayer.Invalidf(field, "must be a string")
	}
	if strings.IndexByte(s, 0) >= 0 {
		return "", relayer.Invalidf(field, "must not hold the character NUL")
	}
	if strings.ContainsRune(s, utf8.RuneError) && !bytes.ContainsRune(inside, utf8.RuneError) {
		return "", relayer.Invalidf(field, "holds half of a surrogate pair, or the character U+FFFD escaped")
	}
	return s, nil
}

func isNull(value []byte) bool { return string(value) == "null" }

// stringLen returns the length of the string literal at the start of b.
func stringLen(b []byte) int {
	for i := 1; ; i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
}

// valueLen returns the length of the value at the start of b.
func valueLen(b []byte) int {
	switch b[0] {
	case '"':
		return stringLen(b)
	case '{', '[':
		depth := 0
		for i := 0; ; i++ {
			switch b[i] {
			case '"':
				i += stringLen(b[i:]) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
	default:
		for i, c := range b {
			switch c {
			case ',', '}', ']', ' ', '\t', '\r', '\n':
				return i
			}
		}
		return len(b)
	}
}

// trim drops leading white space of b.
func trim(b []byte) []byte {
	for i, c := range b {
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return b[i:]
		}
	}
	return nil
}

// clip shortens a value for an error.
func clip(b []byte) string {
	const most = 40
	if len(b) <= most {
		return string(b)
	}
	return strings.ToValidUTF8(string(b[:most]), "") + "…"
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
