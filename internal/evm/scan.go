package evm

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// The answer to a request for a full block is megabytes of logs and blooms, of which only a few numbers are needed. So
// answers are not decoded as a whole. fields and elements scan the text, skip unused values quickly, and return the
// others as slices of it. Skipped text is checked only as far as needed to find its end.

var errMalformed = errors.New("malformed JSON")

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// skipString returns the index after the string whose opening quote is at i.
func skipString(b []byte, i int) (int, error) {
	for i++; ; {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return 0, errMalformed
		}
		end := i + n
		escapes := 0
		for k := end - 1; k >= i && b[k] == '\\'; k-- {
			escapes++
		}
		if i = end + 1; escapes%2 == 0 {
			return i, nil
		}
	}
}

// skipValue returns the index after the value that begins at i.
func skipValue(b []byte, i int) (int, error) {
	if i >= len(b) {
		return 0, errMalformed
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		for depth := 0; i < len(b); {
			switch b[i] {
			case '"':
				var err error
				if i, err = skipString(b, i); err != nil {
					return 0, err
				}
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1, nil
				}
			}
			i++
		}
		return 0, errMalformed
	}
	start := i
	for i < len(b) && b[i] != ',' && b[i] != '}' && b[i] != ']' && b[i] > ' ' {
		i++
	}
	if i == start {
		return 0, errMalformed
	}
	return i, nil
}

// fields calls f with each key, as written between its quotes, and value of an object.
func fields(b []byte, f func(key string, value []byte) error) error {
	return walk(b, '{', '}', func(i int) (int, error) {
		if i >= len(b) || b[i] != '"' {
			return 0, errMalformed
		}
		end, err := skipString(b, i)
		if err != nil {
			return 0, err
		}
		key := b[i+1 : end-1]
		if i = skipSpace(b, end); i >= len(b) || b[i] != ':' {
			return 0, errMalformed
		}
		i = skipSpace(b, i+1)
		if end, err = skipValue(b, i); err != nil {
			return 0, err
		}
		return end, f(string(key), b[i:end])
	})
}

// elements calls f with each value of an array.
func elements(b []byte, f func(value []byte) error) error {
	return walk(b, '[', ']', func(i int) (int, error) {
		end, err := skipValue(b, i)
		if err != nil {
			return 0, err
		}
		return end, f(b[i:end])
	})
}

// walk scans the comma-separated items between open and end; item returns the index after the item at i.
func walk(b []byte, open, end byte, item func(i int) (int, error)) error {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != open {
		return errMalformed
	}
	for i = skipSpace(b, i+1); i >= len(b) || b[i] != end; {
		var err error
		if i, err = item(i); err != nil {
			return err
		}
		if i = skipSpace(b, i); i >= len(b) {
			return errMalformed
		}
		if b[i] == ',' {
			if i = skipSpace(b, i+1); i < len(b) && b[i] == end {
				return errMalformed
			}
		} else if b[i] != end {
			return errMalformed
		}
	}
	if skipSpace(b, i+1) != len(b) {
		return errMalformed
	}
	return nil
}

func isNull(b []byte) bool { return len(b) == 0 || string(b) == "null" }

// quoted returns the text of a string without escapes.
func quoted(b []byte) ([]byte, error) {
	if len(b) < 2 || b[0] != '"' || b[len(b)-1] != '"' {
		return nil, fmt.Errorf("%w: not a string", errMalformed)
	}
	return b[1 : len(b)-1], nil
}

// digits returns the digits after "0x".
func digits(b []byte) ([]byte, error) {
	s, err := quoted(b)
	if err != nil {
		return nil, err
	}
	if len(s) < 3 || s[0] != '0' || s[1]|0x20 != 'x' {
		return nil, fmt.Errorf("%w: not a hex number", errMalformed)
	}
	return s[2:], nil
}

// parseUint parses a quantity. Leading zeros, which the specification forbids and some nodes write, are accepted.
func parseUint(b []byte) (n uint64, err error) {
	s, err := digits(b)
	if err != nil {
		return 0, err
	}
	for _, c := range s {
		d := fromHex(c)
		if d > 15 {
			return 0, fmt.Errorf("%w: not a hex number", errMalformed)
		}
		if n>>60 != 0 {
			return 0, fmt.Errorf("%w: number above 64 bits", errMalformed)
		}
		n = n<<4 | uint64(d)
	}
	return n, nil
}

func fromHex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10
	}
	return 255
}

// parseBig parses a quantity of up to 256 bits.
func parseBig(b []byte) (*big.Int, error) {
	s, err := digits(b)
	if err != nil {
		return nil, err
	}
	if s = bytes.TrimLeft(s, "0"); len(s) > 64 {
		return nil, fmt.Errorf("%w: number above 256 bits", errMalformed)
	}
	if len(s) <= 16 {
		n, err := parseUint(b)
		return new(big.Int).SetUint64(n), err
	}
	return hexutil.DecodeBig("0x" + string(s))
}

// parseFixed decodes b into to, which must have exactly that length.
func parseFixed(to, b []byte) error {
	s, err := digits(b)
	if err != nil {
		return err
	}
	if len(s) != 2*len(to) {
		return fmt.Errorf("%w: %d hex digits where %d belong", errMalformed, len(s), 2*len(to))
	}
	if _, err := hex.Decode(to, s); err != nil {
		return fmt.Errorf("%w: not hex", errMalformed)
	}
	return nil
}

func parseHash(b []byte) (h common.Hash, err error) {
	err = parseFixed(h[:], b)
	return h, err
}
