package jsonbody

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// These are the bounds of an object in a request, far above what the APIs use.
const (
	maxDepth  = 32
	maxFields = 64
)

// Error reports an invalid body.
type Error struct {
	Field   string // its path, such as "metadata.trader"; "" for the whole body
	Problem string // what is wrong, and how to correct it
}

func (e *Error) Error() string {
	if e.Field == "" {
		return e.Problem
	}
	return e.Field + ": " + e.Problem
}

// Invalidf returns an [*Error].
func Invalidf(field, format string, args ...any) error {
	return &Error{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// Object returns the JSON object of a body. The other functions rely on its checks, or those of [WellFormed].
func Object(body []byte) ([]byte, error) {
	body, err := WellFormed(body)
	if err == nil && body[0] != '{' {
		err = Invalidf("", "the body must be a JSON object")
	}
	return body, err
}

// WellFormed returns the JSON value of a body. It rejects a body that is not one value in UTF-8, or is nested too deep.
func WellFormed(body []byte) ([]byte, error) {
	if !utf8.Valid(body) {
		return nil, Invalidf("", "the body is not UTF-8")
	}
	if !json.Valid(body) {
		var raw json.RawMessage
		return nil, Invalidf("", "the body is not JSON: %v", json.Unmarshal(body, &raw))
	}
	body = trim(body)
	depth := 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '"':
			i += stringLen(body[i:]) - 1
		case '{', '[':
			if depth++; depth > maxDepth {
				return nil, Invalidf("", "the body is nested deeper than %d levels", maxDepth)
			}
		case '}', ']':
			depth--
		}
	}
	return body, nil
}

// Elements calls fn for each element of a well-formed array.
func Elements(array []byte, fn func(value []byte) error) error {
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

// Fields calls fn for each field of a well-formed object. A name given twice is an error. path is the path of the object; "" for a body.
func Fields(object []byte, path string, fn func(name, value []byte) error) error {
	var seen [maxFields][]byte
	rest := trim(object[1:])
	for n := 0; rest[0] != '}'; n++ {
		size := stringLen(rest)
		name := rest[1 : size-1]
		if bytes.IndexByte(name, '\\') >= 0 {
			s, err := Text(path, rest[:size])
			if err != nil {
				return err
			}
			name = []byte(s)
		}
		if n == maxFields {
			return Invalidf(path, "more than %d fields", maxFields)
		}
		for _, other := range seen[:n] {
			if bytes.Equal(other, name) {
				return Invalidf(Join(path, Clip(name)), "is there twice")
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

// Text returns the value of a string literal. A string that Postgres cannot store is an error.
func Text(field string, literal []byte) (string, error) {
	if literal[0] != '"' {
		return "", Invalidf(field, "must be a string, not %s", Clip(literal))
	}
	inside := literal[1 : len(literal)-1]
	if bytes.IndexByte(inside, '\\') < 0 {
		return string(inside), nil
	}
	var s string
	if err := json.Unmarshal(literal, &s); err != nil {
		return "", Invalidf(field, "must be a string")
	}
	if strings.IndexByte(s, 0) >= 0 {
		return "", Invalidf(field, "must not hold the character NUL")
	}
	if strings.ContainsRune(s, utf8.RuneError) && !bytes.ContainsRune(inside, utf8.RuneError) {
		return "", Invalidf(field, "holds half of a surrogate pair, or the character U+FFFD escaped")
	}
	return s, nil
}

// OtherCase returns an error if a name differs from one of the known names only in the case of its letters. Decoders that ignore
// unknown names call it: such a field would be missing silently.
func OtherCase(path string, name []byte, known ...string) error {
	for _, k := range known {
		if string(name) != k && strings.EqualFold(string(name), k) {
			return Invalidf(Join(path, Clip(name)), "must be written as %s", k)
		}
	}
	return nil
}

// Unknown returns the error for a name that an object does not have.
func Unknown(path string, name []byte, known ...string) error {
	if err := OtherCase(path, name, known...); err != nil {
		return err
	}
	return Invalidf(Join(path, Clip(name)), "is unknown: there are %s", strings.Join(known, ", "))
}

// IsNull reports whether a value is null.
func IsNull(value []byte) bool { return string(value) == "null" }

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

// Clip shortens a value for an error.
func Clip(b []byte) string {
	const most = 40
	if len(b) <= most {
		return string(b)
	}
	return strings.ToValidUTF8(string(b[:most]), "") + "…"
}

// Join returns the path of a name in an object.
func Join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
