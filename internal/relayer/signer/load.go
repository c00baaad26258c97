package signer

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common"
)

// The environment variables that hold keys, or name files with keys. See the package's documentation.
const (
	VarKeysJSON         = "RELAYER_PRIVATE_KEYS_JSON"
	VarKeyPrefix        = "RELAYER_PRIVATE_KEY_" // and a number
	VarKeystoreDir      = "RELAYER_KEYSTORE_DIR"
	VarKeystorePassword = "RELAYER_KEYSTORE_PASSWORD"
	VarAllowed          = "RELAYER_ALLOWED_ADDRESSES"
	// FileSuffix, after a variable's name, forms the name of the variable that holds the name of a file with the value.
	FileSuffix = "_FILE"
)

// Source configures where the keys are loaded from.
type Source struct {
	// Environ is the environment, NAME=value each, in the format of os.Environ. A later value overrides an earlier one.
	Environ []string
	// Log receives warnings. Default: discard.
	Log *slog.Logger
	// Elsewhere are addresses whose keys are loaded from another source: they may be on the allow-list without a
	// warning.
	Elsewhere []common.Address
}

// found is a key and where it was found.
type found struct {
	where string
	key   []byte
}

// Keys are keys that [Read] has read.
type Keys struct {
	ring *Ring                                // nil for a keystore
	open func(context.Context) (*Ring, error) // of a keystore; a closure, because it has the password
}

// Ring returns the ring; nil for a keystore, and for nil.
func (k *Keys) Ring() *Ring {
	if k == nil {
		return nil
	}
	return k.ring
}

// Open returns a ring with a local signer for each key. A keystore is opened for it, once: each file takes a second and 256 MiB at
// geth's standard cost, and all files together use no more than that memory. The error is an [*Error], which holds every problem, or the
// context's.
func (k *Keys) Open(ctx context.Context) (*Ring, error) {
	if k.ring != nil {
		return k.ring, nil
	}
	return k.open(ctx)
}

// Load reads and opens the keys.
func Load(ctx context.Context, source Source) (*Ring, error) {
	keys, err := Read(source)
	if err != nil {
		return nil, err
	}
	return keys.Open(ctx)
}

// Read reads the keys and validates them, except for the content of keystore files that takes time to open. Its error is an [*Error],
// which holds every problem.
func Read(source Source) (*Keys, error) {
	l := &loader{log: source.Log, elsewhere: source.Elsewhere, environ: make(map[string]string)}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	for _, variable := range source.Environ {
		if name, value, ok := strings.Cut(variable, "="); ok {
			l.environ[name] = value
		}
	}
	maps.DeleteFunc(l.environ, func(_, value string) bool { return strings.TrimSpace(value) == "" })
	keys, err := l.keys()
	if err != nil {
		return nil, err
	}
	if len(l.sealed) == 0 {
		ring, err := l.ring(keys)
		if err != nil {
			return nil, err
		}
		return &Keys{ring: ring}, nil
	}
	l.allowed() // reports an invalid list
	if len(l.problems) > 0 {
		return nil, &Error{Problems: l.problems}
	}
	return &Keys{open: l.open}, nil
}

type loader struct {
	log       *slog.Logger
	elsewhere []common.Address
	environ   map[string]string // without empty values
	sealed    []sealed          // the files of a keystore
	password  []byte            // that opens them
	problems
}

// ring returns a ring of the keys, which it clears.
func (l *loader) ring(keys []found) (*Ring, error) {
	defer func() {
		for _, k := range keys {
			clear(k.key)
		}
	}()
	signers, first := l.signers(keys)
	l.allow(signers, first)
	if len(l.problems) > 0 {
		return nil, &Error{Problems: l.problems}
	}
	ring, err := New(signers...)
	if err != nil {
		return nil, fmt.Errorf("load keys: %w", err)
	}
	return ring, nil
}

// keys selects the one source and reads it; the files of a keystore stay sealed. It reports an unreadable source as a problem. Its error
// is that there is no source.
func (l *loader) keys() ([]found, error) {
	numbered := l.numbered()
	var kinds []string // one variable of each source that is set
	json := l.either(VarKeysJSON)
	if json != "" {
		kinds = append(kinds, json)
	}
	if len(numbered) > 0 {
		kinds = append(kinds, numbered[0].variable)
	}
	if l.environ[VarKeystoreDir] != "" {
		kinds = append(kinds, VarKeystoreDir)
	} else if password := l.either(VarKeystorePassword); password != "" {
		l.addf(password, "is a password without a keystore; give %s too", VarKeystoreDir)
	}
	switch {
	case len(kinds) == 0 && len(l.problems) == 0:
		return nil, &Error{none: true, Problems: []Problem{{
			Where: "the environment",
			What:  fmt.Sprintf("there are no keys; give %s, %s0 and so on, or %s", VarKeysJSON, VarKeyPrefix, VarKeystoreDir),
		}}}
	case len(kinds) > 1:
		l.addf(kinds[0], "contradicts %s; give keys in one of them", strings.Join(kinds[1:], " and "))
		return nil, nil
	case json != "":
		return l.array(), nil
	case len(numbered) > 0:
		return l.singles(numbered), nil
	case len(kinds) == 1:
		l.keystore()
	}
	return nil, nil
}

// either returns the name of the variable or of its _FILE form, whichever is set; "" if neither is.
func (l *loader) either(name string) string {
	if l.environ[name] != "" {
		return name
	}
	if l.environ[name+FileSuffix] != "" {
		return name + FileSuffix
	}
	return ""
}

// value returns the value of a variable, or of the file that its _FILE form names; where is the name of the one that is
// set.
func (l *loader) value(name string, limit int64) (value []byte, where string, ok bool) {
	direct, file := l.environ[name], l.environ[name+FileSuffix]
	switch {
	case direct != "" && file != "":
		l.addf(name+FileSuffix, "contradicts %s; give one of them", name)
		return nil, "", false
	case file == "":
		if int64(len(direct)) > limit {
			l.addf(name, "is larger than %d bytes", limit)
			return nil, "", false
		}
		return []byte(direct), name, true
	}
	where = name + FileSuffix
	content, ok := l.read(where, file, limit)
	return content, where, ok
}

// array reads RELAYER_PRIVATE_KEYS_JSON.
func (l *loader) array() []found {
	text, where, ok := l.value(VarKeysJSON, maxArrayBytes)
	if !ok {
		return nil
	}
	defer clear(text)
	keys, faults := parseArray(text)
	for _, f := range faults {
		at := where
		if f.index >= 0 {
			at = fmt.Sprintf("%s[%d]", where, f.index)
		}
		l.addf(at, "%s", f.what)
	}
	list := make([]found, 0, len(keys))
	for _, k := range keys {
		list = append(list, found{where: fmt.Sprintf("%s[%d]", where, k.index), key: k.key})
	}
	return list
}

// number is a variable such as RELAYER_PRIVATE_KEY_7, or RELAYER_PRIVATE_KEY_7_FILE.
type number struct {
	variable string
	n        int
}

// numbered returns the numbered variables that are set, in order, each number once.
func (l *loader) numbered() []number {
	var list []number
	for _, name := range slices.Sorted(maps.Keys(l.environ)) {
		rest, ok := strings.CutPrefix(name, VarKeyPrefix)
		if !ok {
			continue
		}
		if n, ok := parseNumber(strings.TrimSuffix(rest, FileSuffix)); ok {
			list = append(list, number{variable: name, n: n})
		} else {
			if len(rest) > 20 { // the name may contain a key
				name = VarKeyPrefix + "…"
			}
			l.addf(name, "%s", "is none of "+VarKeyPrefix+"0, "+VarKeyPrefix+"1 and so on")
		}
	}
	slices.SortStableFunc(list, func(a, b number) int { return a.n - b.n })
	return slices.CompactFunc(list, func(a, b number) bool { return a.n == b.n })
}

// parseNumber parses a decimal number without leading zeros or a sign.
func parseNumber(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), err == nil && strconv.FormatUint(n, 10) == text
}

// gaps reports the missing numbers from 0 on, as ranges; name returns the name of a number.
func (l *loader) gaps(numbers []number, name func(int) string) {
	next := 0
	for _, there := range numbers {
		switch there.n - next {
		case 0:
		case 1:
			l.addf(name(next), "is missing, but there is %s: numbers begin at 0 and have no gaps", name(there.n))
		default:
			l.addf(name(next), "and all up to %s are missing, but there is %s: numbers begin at 0 and have no gaps", name(there.n-1), name(there.n))
		}
		next = there.n + 1
	}
}

// singles reads RELAYER_PRIVATE_KEY_0 and the following.
func (l *loader) singles(numbers []number) []found {
	variable := func(n int) string { return VarKeyPrefix + strconv.Itoa(n) }
	l.gaps(numbers, variable)
	if !l.few(variable(0), len(numbers)) {
		return nil
	}
	var list []found
	for _, n := range numbers {
		text, where, ok := l.value(variable(n.n), maxKeyBytes)
		if !ok {
			continue
		}
		if key, ok := parseKey(text); ok {
			list = append(list, found{where: where, key: key})
		} else {
			l.addf(where, "%v", ErrMalformed)
		}
		clear(text)
	}
	return list
}

// few reports whether n is at most MaxKeys, before any key is read.
func (l *loader) few(where string, n int) bool {
	if n > MaxKeys {
		l.addf(where, "and the others are %d keys: more than %d", n, MaxKeys)
	}
	return n <= MaxKeys
}

// signers returns a signer for each key and reports duplicate keys; first is where each key was found.
func (l *loader) signers(keys []found) (list []Signer, first map[common.Address]string) {
	first = make(map[common.Address]string, len(keys))
	for _, k := range keys {
		s, err := NewLocal(k.key)
		if err != nil {
			l.addf(k.where, "%v", err)
			continue
		}
		if other, ok := first[s.Address()]; ok {
			l.addf(k.where, "is the same key as %s (address %s)", other, s.Address())
			continue
		}
		first[s.Address()] = k.where
		list = append(list, s)
	}
	return list, first
}

// allowed returns the addresses of the allow-list. It returns nil without a list, and if the list is invalid, which it reports.
func (l *loader) allowed() map[common.Address]bool {
	text := l.environ[VarAllowed]
	if text == "" {
		return nil
	}
	allowed := make(map[common.Address]bool)
	wrong := false
	words := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' })
	for i, word := range words {
		address, what := parseAddress(word)
		if what != "" {
			l.addf(fmt.Sprintf("%s[%d]", VarAllowed, i), "%s", what)
			wrong = true
		}
		allowed[address] = false
	}
	if len(words) == 0 {
		l.addf(VarAllowed, "holds no address")
		wrong = true
	}
	if wrong {
		return nil
	}
	return allowed
}

// allow compares the signers with the allow-list. If the list itself is invalid, no key is reported.
func (l *loader) allow(signers []Signer, first map[common.Address]string) {
	allowed := l.allowed()
	if allowed == nil {
		return
	}
	for _, s := range signers {
		if _, ok := allowed[s.Address()]; !ok {
			l.addf(first[s.Address()], "its address %s is not in %s", s.Address(), VarAllowed)
		}
		allowed[s.Address()] = true
	}
	for _, address := range slices.SortedFunc(maps.Keys(allowed), compareAddresses) {
		if !allowed[address] && !slices.Contains(l.elsewhere, address) && len(l.problems) == 0 {
			l.log.Warn("an allowed address has no key", "address", address.Hex(), "variable", VarAllowed)
		}
	}
}
