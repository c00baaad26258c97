package jsonbody

import (
	"encoding/hex"
	"math/big"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common"
)

// Amount reads a JSON number, or a string with a decimal number or 0x hex: 0 to 2^256-1, never through a float.
func Amount(field string, value []byte) (*big.Int, error) {
	s := string(value)
	switch c := value[0]; {
	case c == '"':
		var err error
		if s, err = Text(field, value); err != nil {
			return nil, err
		}
	case c != '-' && (c < '0' || c > '9'):
		return nil, Invalidf(field, "must be a whole number: an integer, a decimal string or 0x hex, not %s", Clip(value))
	}
	return parseAmount(field, s)
}

func parseAmount(field, s string) (*big.Int, error) {
	digits, base := s, 10
	if len(s) > 1 && s[0] == '0' && s[1]|0x20 == 'x' {
		digits, base = s[2:], 16
	}
	// SetString accepts signs and underscores too.
	if digits == "" || !allDigits(digits, base) {
		if strings.HasPrefix(s, "-") {
			return nil, Invalidf(field, "must not be negative: %s", Clip([]byte(s)))
		}
		return nil, Invalidf(field,
			"must be a whole number: an integer without fraction or exponent, a decimal string or 0x hex, not %q", Clip([]byte(s)))
	}
	if base == 10 && len(digits) < 19 || base == 16 && len(digits) <= 16 {
		n, err := strconv.ParseUint(digits, base, 64)
		if err != nil {
			return nil, Invalidf(field, "must be a whole number, not %q", s)
		}
		return new(big.Int).SetUint64(n), nil
	}
	// The length is checked first, because parsing a long number is expensive.
	digits = strings.TrimLeft(digits, "0")
	const mostDecimal = 78 // of 2^256-1
	if len(digits) <= mostDecimal {
		n, ok := new(big.Int).SetString("0"+digits, base)
		if ok && n.BitLen() <= 256 {
			return n, nil
		}
	}
	return nil, Invalidf(field, "must be below 2^256: %s", Clip([]byte(s)))
}

func allDigits(s string, base int) bool {
	for i := range len(s) {
		if c := s[i]; c >= '0' && c <= '9' || base == 16 && (c|0x20) >= 'a' && (c|0x20) <= 'f' {
			continue
		}
		return false
	}
	return true
}

// Count reads an amount that fits a uint64.
func Count(field string, value []byte) (uint64, error) {
	n, err := Amount(field, value)
	if err != nil {
		return 0, err
	}
	if !n.IsUint64() {
		return 0, Invalidf(field, "must be below 2^64: %s", Clip(value))
	}
	return n.Uint64(), nil
}

// Address reads an address in hex. One with letters of both cases must have the right checksum.
func Address(field string, value []byte) (*common.Address, error) {
	s, err := Text(field, value)
	if err != nil {
		return nil, err
	}
	a, err := ParseAddress(s)
	if err != nil {
		return nil, Invalidf(field, "%v", err)
	}
	return &a, nil
}

// ParseAddress reads an address in hex, with or without 0x. One with letters of both cases must have the checksum of
// EIP-55. It fails with an [*Error] that names no field.
func ParseAddress(s string) (common.Address, error) {
	digits := strip0x(s)
	var a common.Address
	if len(digits) != 2*len(a) {
		return a, Invalidf("", "must be an address, 0x and %d hex digits, not %q", 2*len(a), Clip([]byte(s)))
	}
	if _, err := hex.Decode(a[:], []byte(digits)); err != nil {
		return common.Address{}, Invalidf("", "must be an address in hex, not %q", s)
	}
	if digits == strings.ToLower(digits) || digits == strings.ToUpper(digits) || digits == a.Hex()[2:] {
		return a, nil
	}
	return common.Address{}, Invalidf("",
		"the checksum of %s is wrong: some character is mistyped (all letters in lower case skip the check)", s)
}

// Bytes reads data in hex, with or without 0x.
func Bytes(field string, value []byte) ([]byte, error) {
	s, err := Text(field, value)
	if err != nil {
		return nil, err
	}
	digits := strip0x(s)
	if len(digits)%2 != 0 {
		return nil, Invalidf(field, "must be hex with two digits a byte: %q has %d digits", Clip([]byte(s)), len(digits))
	}
	b, err := hex.DecodeString(digits)
	if err != nil {
		return nil, Invalidf(field, "must be hex, such as 0xa9059cbb, not %q: %v", Clip([]byte(s)), err)
	}
	return b, nil
}

func strip0x(s string) string {
	if len(s) > 1 && s[0] == '0' && s[1]|0x20 == 'x' {
		return s[2:]
	}
	return s
}
