package supervisor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
)

// keyCount is the number of keys in the relayers' pool.
const keyCount = 4

// caller is the name of the caller with these API keys. It is the same at every relayer, so that an idempotency key
// refers to the same transaction at each.
const caller = "dev"

// Secrets are the secrets of a pool of relayers for development. They are files in a folder with access for its owner
// only, made at the first use.
//
//	keys.json             private keys, in the format of RELAYER_PRIVATE_KEYS_JSON_FILE
//	oz-relayer-N.api-key  name and API key of relayer N, in the format of RELAYER_API_KEYS_FILE
type Secrets struct {
	folder string
	// Addresses are the addresses of the private keys.
	Addresses []common.Address
	apiKeys   []string // by relayer
}

// OpenSecrets reads the secrets of a number of relayers, and makes missing ones.
func OpenSecrets(ctx context.Context, folder string, relayers int) (*Secrets, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	s := &Secrets{folder: folder}
	if err := once(s.keysFile(), newKeys); err != nil {
		return nil, err
	}
	ring, err := signer.Load(ctx, signer.Source{Environ: []string{s.variable()}})
	if err != nil {
		return nil, fmt.Errorf("%w; remove the file to have keys made again", err)
	}
	s.Addresses = ring.Addresses()
	for i := range relayers {
		file := s.apiKeyFile(i)
		if err := once(file, newAPIKey); err != nil {
			return nil, err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		_, key, ok := strings.Cut(strings.TrimSpace(string(content)), ":")
		if !ok {
			return nil, fmt.Errorf("%s does not hold name:key; remove it to have one made again", file)
		}
		s.apiKeys = append(s.apiKeys, key)
	}
	return s, nil
}

func (s *Secrets) keysFile() string        { return filepath.Join(s.folder, "keys.json") }
func (s *Secrets) apiKeyFile(i int) string { return filepath.Join(s.folder, relayerID(i)+".api-key") }
func (s *Secrets) databaseURLFile() string { return filepath.Join(s.folder, "database-url") }
func (s *Secrets) variable() string {
	return signer.VarKeysJSON + signer.FileSuffix + "=" + s.keysFile()
}

// Funded returns the addresses in the format of the flag of rollcall-dev chain.
func (s *Secrets) Funded() string {
	var addresses []string
	for _, a := range s.Addresses {
		addresses = append(addresses, a.Hex())
	}
	return strings.Join(addresses, ",")
}

// once makes a file unless it exists.
func once(path string, content func() ([]byte, error)) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := content()
	if err != nil {
		return err
	}
	return replace(path, append(text, '\n'))
}

func newKeys() ([]byte, error) {
	var keys [keyCount]string
	for i := range keys {
		key, err := crypto.GenerateKey()
		if err != nil {
			return nil, err
		}
		keys[i] = "0x" + hex.EncodeToString(crypto.FromECDSA(key))
	}
	return json.Marshal(keys)
}

func newAPIKey() ([]byte, error) { return []byte(caller + ":" + rand.Text() + rand.Text()), nil }
