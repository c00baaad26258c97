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

// Secrets are the secrets of a pool of relayers and of the relay path, for development. They are files in a folder with
// access for its owner only. The first ones are made at the first use, the others at each.
//
//	keys.json              private keys, in the format of RELAYER_PRIVATE_KEYS_JSON_FILE
//	oz-relayer-N.api-key   a name and an API key for relayer N
//	consumer.relayer-key   the consumers' key for all relayers, in the format of CONSUMER_RELAYER_KEY_FILE
//	client.api-key         a client's name and key, in the format of API_KEYS_FILE
//	webhook-secret         with which relayers sign, in the format of WEBHOOK_SECRET_FILE
//
//	oz-relayer-N.api-keys  both keys of relayer N, in the format of RELAYER_API_KEYS_FILE
//	webhooks.json          the relayers' webhooks, in the format of RELAYER_WEBHOOKS_JSON_FILE
type Secrets struct {
	folder string
	// Addresses are the addresses of the private keys.
	Addresses []common.Address
	apiKeys   []string // by relayer
	clientKey string
}

// OpenSecrets reads the secrets of a number of relayers that send webhooks to APIs at some URLs, and makes missing ones.
func OpenSecrets(ctx context.Context, folder string, relayers int, apiURLs ...string) (*Secrets, error) {
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
	for _, file := range []string{s.consumerKeyFile(), s.webhookSecretFile()} {
		if err := once(file, newSecret); err != nil {
			return nil, err
		}
	}
	forConsumers, err := os.ReadFile(s.consumerKeyFile())
	if err != nil {
		return nil, err
	}
	if s.clientKey, err = namedKey(s.clientKeysFile()); err != nil {
		return nil, err
	}
	for i := range relayers {
		key, err := namedKey(s.apiKeyFile(i))
		if err != nil {
			return nil, err
		}
		s.apiKeys = append(s.apiKeys, key)
		// The consumers have one name at all relayers, which then have one scope of idempotency keys.
		both := fmt.Sprintf("%s:%s\nconsumer/submit:%s", caller, key, forConsumers)
		if err := replace(s.relayerKeysFile(i), []byte(both)); err != nil {
			return nil, err
		}
	}
	return s, s.writeWebhooks(apiURLs)
}

// writeWebhooks has the relayers send webhooks to each API.
func (s *Secrets) writeWebhooks(apiURLs []string) error {
	secret, err := os.ReadFile(s.webhookSecretFile())
	if err != nil {
		return err
	}
	type target struct {
		Name        string   `json:"name"`
		URL         string   `json:"url"`
		SigningKeys []string `json:"signingKeys"`
	}
	targets := []target{}
	for i, url := range apiURLs {
		targets = append(targets, target{apiID(i), url + "/api/v1/webhooks/oz-relayer", []string{strings.TrimSpace(string(secret))}})
	}
	content, err := json.Marshal(targets)
	if err != nil {
		return err
	}
	return replace(s.webhooksFile(), append(content, '\n'))
}

// namedKey returns the key in a file, and makes the file unless it exists.
func namedKey(file string) (string, error) {
	if err := once(file, newAPIKey); err != nil {
		return "", err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	_, key, ok := strings.Cut(strings.TrimSpace(string(content)), ":")
	if !ok {
		return "", fmt.Errorf("%s does not hold name:key; remove it to have one made again", file)
	}
	return key, nil
}

func (s *Secrets) keysFile() string             { return filepath.Join(s.folder, "keys.json") }
func (s *Secrets) apiKeyFile(i int) string      { return filepath.Join(s.folder, relayerID(i)+".api-key") }
func (s *Secrets) relayerKeysFile(i int) string { return s.apiKeyFile(i) + "s" }
func (s *Secrets) consumerKeyFile() string      { return filepath.Join(s.folder, "consumer.relayer-key") }
func (s *Secrets) clientKeysFile() string       { return filepath.Join(s.folder, "client.api-key") }
func (s *Secrets) webhookSecretFile() string    { return filepath.Join(s.folder, "webhook-secret") }
func (s *Secrets) webhooksFile() string         { return filepath.Join(s.folder, "webhooks.json") }
func (s *Secrets) databaseURLFile() string      { return filepath.Join(s.folder, "database-url") }
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
func newSecret() ([]byte, error) { return []byte(rand.Text() + rand.Text()), nil }
