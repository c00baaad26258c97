package signer

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/ethereum/go-ethereum/accounts/keystore"
	"golang.org/x/sync/semaphore"
)

const (
	maxKeystoreBytes = 64 << 10
	maxPasswordBytes = 4 << 10
	// maxMemory limits the memory of the password function: geth's standard cost, N = 2^18 and r = 8. It is also the
	// limit for all concurrent files together.
	maxMemory = 256 << 20
	// manyBytes is the memory of a file from which a garbage collection pays off.
	manyBytes = 32 << 20
	// maxWork limits N·r·p: four times the standard cost; some seconds.
	maxWork = 4 << 21
	// maxRounds limits the rounds of PBKDF2; geth writes 262,144.
	maxRounds = 4 << 20
)

// sealed is a file of a keystore.
type sealed struct {
	name string
	*keystoreFile
}

// keystore reads the files of the folder, and the password.
func (l *loader) keystore() {
	files := l.files(l.environ[VarKeystoreDir])
	password, ok := l.readPassword()
	if !ok {
		return
	}
	l.password = password
	for _, name := range files {
		content, ok := l.read(VarKeystoreDir, name, maxKeystoreBytes)
		if !ok {
			continue
		}
		file, err := parseKeystore(content)
		if err != nil {
			l.addf(name, "%v", err)
			continue
		}
		l.sealed = append(l.sealed, sealed{name, file})
	}
}

// open opens the files, and returns a ring of their keys.
func (l *loader) open(ctx context.Context) (*Ring, error) {
	keys, err := l.unseal(ctx)
	if err != nil {
		return nil, err
	}
	return l.ring(keys)
}

// unseal opens the files, and clears the password. Its error is the context's.
func (l *loader) unseal(ctx context.Context) ([]found, error) {
	defer clear(l.password)
	type result struct {
		problems
		key []byte
	}
	results := make([]result, len(l.sealed))
	memory := semaphore.NewWeighted(maxMemory)
	workers := semaphore.NewWeighted(int64(runtime.GOMAXPROCS(0)))
	var wg sync.WaitGroup
	defer wg.Wait() // before the password is cleared
	for i, file := range l.sealed {
		r := &results[i]
		if err := workers.Acquire(ctx, 1); err != nil {
			return nil, fmt.Errorf("load keys: %w", context.Cause(ctx))
		}
		if err := memory.Acquire(ctx, file.memory()); err != nil {
			return nil, fmt.Errorf("load keys: %w", context.Cause(ctx))
		}
		wg.Go(func() {
			defer workers.Release(1)
			defer memory.Release(file.memory())
			if file.memory() >= manyBytes {
				defer debug.FreeOSMemory() // before the next file allocates as much again
			}
			var err error
			if r.key, err = file.open(string(l.password)); err != nil {
				r.addf(file.name, "%v", err)
			}
		})
	}
	wg.Wait()
	var list []found
	for i, r := range results {
		l.problems = append(l.problems, r.problems...)
		if r.key != nil {
			list = append(list, found{where: l.sealed[i].name, key: r.key})
		}
	}
	return list, nil
}

func (l *loader) readPassword() ([]byte, bool) {
	if l.either(VarKeystorePassword) == "" {
		l.addf(VarKeystoreDir, "a keystore takes a password; give %s", VarKeystorePassword+FileSuffix)
		return nil, false
	}
	password, _, ok := l.value(VarKeystorePassword, maxPasswordBytes)
	return password, ok
}

// files returns the keystore files of the folder, in the order of their numbers.
func (l *loader) files(folder string) []string {
	entries, err := os.ReadDir(folder)
	if err != nil {
		l.addf(VarKeystoreDir, "the folder it names: %v", withoutPath(err))
		return nil
	}
	file := func(n int) string { return filepath.Join(folder, "relayer-"+strconv.Itoa(n)+".json") }
	var numbers []number
	for _, entry := range entries {
		middle, isKey := strings.CutPrefix(entry.Name(), "relayer-")
		middle, isJSON := strings.CutSuffix(middle, ".json")
		if !isKey || !isJSON {
			continue
		}
		if n, ok := parseNumber(middle); ok {
			numbers = append(numbers, number{n: n})
		} else {
			l.addf(filepath.Join(folder, entry.Name()), "is none of relayer-0.json, relayer-1.json and so on")
		}
	}
	if len(numbers) == 0 {
		l.addf(VarKeystoreDir, "%s holds no relayer-0.json, relayer-1.json and so on", folder)
	}
	slices.SortFunc(numbers, func(a, b number) int { return a.n - b.n })
	l.gaps(numbers, file)
	if !l.few(file(0), len(numbers)) {
		return nil
	}
	var names []string
	for _, n := range numbers {
		names = append(names, file(n.n))
	}
	return names
}

// keystoreFile is the content of Web3 secret storage, version 3. go-ethereum does not check the parameters and panics
// on missing ones, so all of them are checked here.
type keystoreFile struct {
	Version int                 `json:"version"`
	Address string              `json:"address"`
	Crypto  keystore.CryptoJSON `json:"crypto"`
	// params is the cost of the function that derives a key from the password.
	params kdfParams
}

type kdfParams struct {
	Salt  string `json:"salt"`
	DKLen int    `json:"dklen"`
	N     int    `json:"n"` // scrypt
	R     int    `json:"r"`
	P     int    `json:"p"`
	C     int    `json:"c"` // pbkdf2
	PRF   string `json:"prf"`
}

var (
	errNoKeystore = errors.New("is not a keystore file of version 3")
	errTooCostly  = errors.New("its password function costs too much: more than 256 MiB, or several times geth's standard work")
	errPassword   = errors.New("the password does not open it, or it is damaged")
)

func parseKeystore(content []byte) (*keystoreFile, error) {
	var f keystoreFile
	var raw struct {
		Crypto struct {
			Params kdfParams `json:"kdfparams"`
		} `json:"crypto"`
	}
	// The errors of encoding/json may quote the content.
	if json.Unmarshal(content, &f) != nil || json.Unmarshal(content, &raw) != nil || f.Version != 3 {
		return nil, errNoKeystore
	}
	f.params = raw.Crypto.Params
	p, c := &f.params, &f.Crypto
	if c.Cipher != "aes-128-ctr" || p.DKLen < 32 || p.DKLen > 64 || len(p.Salt) > 256 ||
		!isHex(p.Salt, -1) || !isHex(c.CipherParams.IV, 16) || !isHex(c.CipherText, 32) || !isHex(c.MAC, 32) {
		return nil, errNoKeystore
	}
	c.KDFParams = map[string]any{"salt": p.Salt, "dklen": p.DKLen}
	switch c.KDF {
	case "scrypt":
		if p.N < 2 || p.N&(p.N-1) != 0 || p.R < 1 || p.P < 1 {
			return nil, errNoKeystore
		}
		// In this order no product overflows.
		if p.N > maxMemory/128 || p.R > maxMemory/128/p.N || p.P > maxWork/p.N/p.R {
			return nil, errTooCostly
		}
		c.KDFParams["n"], c.KDFParams["r"], c.KDFParams["p"] = p.N, p.R, p.P
	case "pbkdf2":
		if p.C < 1 || p.PRF != "hmac-sha256" {
			return nil, errNoKeystore
		}
		if p.C > maxRounds {
			return nil, errTooCostly
		}
		p.N, p.R = 0, 0 // PBKDF2 uses no memory, whatever the file contains
		c.KDFParams["c"], c.KDFParams["prf"] = p.C, p.PRF
	default:
		return nil, errNoKeystore
	}
	if f.Address != "" {
		if _, what := parseAddress(f.Address); what != "" {
			return nil, errNoKeystore
		}
	}
	return &f, nil
}

// isHex reports whether text is hex digits of size bytes, or of any number with -1.
func isHex(text string, size int) bool {
	b, err := hex.DecodeString(text)
	return err == nil && (size < 0 || len(b) == size)
}

// memory returns how many bytes open needs, at most maxMemory.
func (f *keystoreFile) memory() int64 {
	return 128 * int64(f.params.N) * int64(f.params.R)
}

func (f *keystoreFile) open(password string) ([]byte, error) {
	key, err := keystore.DecryptDataV3(f.Crypto, password)
	if errors.Is(err, keystore.ErrDecrypt) {
		return nil, errPassword
	}
	if err != nil {
		return nil, errNoKeystore
	}
	if f.Address == "" {
		return key, nil
	}
	own, ok := addressOf(key)
	if !ok {
		return nil, ErrMalformed
	}
	// Otherwise a swapped or edited file would add another key unnoticed.
	if claimed, _ := parseAddress(f.Address); own != claimed {
		return nil, fmt.Errorf("holds the key of %s, but names %s", own, claimed)
	}
	return key, nil
}
