package signer

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// Limits of the input: an array of MaxKeys keys with their addresses and generous white space; one key with white
// space.
const (
	maxArrayBytes = 1 << 20
	maxKeyBytes   = 4 << 10
)

// parseKey parses 64 hex digits within the curve's range, with or without 0x, and with optional white space around
// them.
func parseKey(text []byte) ([]byte, bool) {
	text = bytes.TrimSpace(text)
	if len(text) >= 2 && text[0] == '0' && text[1]|0x20 == 'x' {
		text = text[2:]
	}
	key := make([]byte, 32)
	if len(text) != hex.EncodedLen(len(key)) {
		return nil, false
	}
	if _, err := hex.Decode(key, text); err != nil {
		return nil, false
	}
	_, ok := addressOf(key)
	return key, ok
}

// addressOf returns the address of a key, and whether the bytes are a valid key.
func addressOf(key []byte) (common.Address, bool) {
	private, err := crypto.ToECDSA(key)
	if err != nil {
		return common.Address{}, false
	}
	return crypto.PubkeyToAddress(private.PublicKey), true
}

// parseAddress returns an address, or the problem with the text.
func parseAddress(text string) (address common.Address, what string) {
	digits := text
	if strings.HasPrefix(text, "0x") || strings.HasPrefix(text, "0X") {
		digits = text[2:]
	}
	if !common.IsHexAddress(digits) || len(digits) != 40 {
		// The text is not shown, because it may be a key by mistake.
		return address, "is not an address: it takes 40 hex digits, with or without 0x"
	}
	address = common.HexToAddress(digits)
	mixed := digits != strings.ToLower(digits) && digits != strings.ToUpper(digits)
	if mixed && address.Hex()[2:] != digits {
		return address, "the address's checksum is wrong: a character was mistyped, or write all in lower case"
	}
	return address, ""
}

// element is a key in the array.
type element struct {
	index int
	key   []byte
}

// fault is a problem with an element of the array, or with the whole array (-1).
type fault struct {
	index int
	what  string
}

// parseArray parses a JSON array of keys. Errors of encoding/json quote their input, so none is returned.
func parseArray(text []byte) (keys []element, faults []fault) {
	whole := func(format string, args ...any) ([]element, []fault) {
		return nil, []fault{{index: -1, what: fmt.Sprintf(format, args...)}}
	}
	if !json.Valid(text) {
		return whole("is not valid JSON")
	}
	var list []json.RawMessage
	if err := json.Unmarshal(text, &list); err != nil || list == nil {
		return whole(`is not an array: it takes ["0x…", …] or [{"privateKey": "0x…"}, …]`)
	}
	if len(list) == 0 {
		return whole("is an array of no keys")
	}
	if len(list) > MaxKeys {
		return whole("holds %d keys: more than %d", len(list), MaxKeys)
	}
	for i, raw := range list {
		key, what := parseElement(raw)
		if what != "" {
			faults = append(faults, fault{index: i, what: what})
		} else {
			keys = append(keys, element{index: i, key: key})
		}
		clear(raw)
	}
	return keys, faults
}

func parseElement(raw json.RawMessage) (key []byte, what string) {
	text, address, what := keyOf(raw)
	if what != "" {
		return nil, what
	}
	key, ok := parseKey([]byte(text))
	if !ok {
		return nil, ErrMalformed.Error()
	}
	if address == nil {
		return key, ""
	}
	claimed, what := parseAddress(*address)
	if what != "" {
		return nil, "its address " + what
	}
	if own, _ := addressOf(key); own != claimed {
		return nil, fmt.Sprintf("is the key of %s, not of %s beside it", own, claimed)
	}
	return key, ""
}

// keyOf parses "0x…" or {"privateKey": "0x…", "address": "0x…"}. It parses objects token by token, because
// encoding/json would accept duplicate names, and names in any case.
func keyOf(raw json.RawMessage) (key string, address *string, what string) {
	const shape = `is neither a string nor an object of "privateKey" and perhaps "address", both strings`
	decoder := json.NewDecoder(bytes.NewReader(raw))
	first, err := decoder.Token()
	if text, ok := first.(string); ok {
		return text, nil, ""
	}
	if err != nil || first != json.Delim('{') {
		return "", nil, shape
	}
	fields := make(map[string]string, 2)
	for {
		name, err := decoder.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", nil, shape
		}
		if name == json.Delim('}') {
			break
		}
		value, err := decoder.Token()
		text, isText := value.(string)
		label, _ := name.(string)
		if err != nil || !isText || (label != "privateKey" && label != "address") {
			return "", nil, shape
		}
		if _, twice := fields[label]; twice {
			return "", nil, "has " + label + " twice"
		}
		fields[label] = text
	}
	key, ok := fields["privateKey"]
	if !ok {
		return "", nil, shape
	}
	if text, ok := fields["address"]; ok {
		address = &text
	}
	return key, address, ""
}
