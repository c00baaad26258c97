package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
)

const (
	relayerKeys = 16
	// inFlight is how many transactions a key may have pending: as many as the node's pool accepts of one.
	inFlight = 100_000
	apiKey   = "a-key-that-nothing-but-a-benchmark-has"
	poolID   = "pool"
	// webhookKey signs webhooks for the benchmark's own target.
	webhookKey = "a-webhook-key-that-nothing-but-a-benchmark-has"
)

// privateKeys returns n keys, the same ones each time. Never pay to them on a chain with value.
func privateKeys(n int) [][]byte {
	keys := make([][]byte, n)
	for i := range keys {
		sum := sha256.Sum256(fmt.Appendf(nil, "rollcall key of a benchmark, worth nothing: %d", i))
		keys[i] = sum[:]
	}
	return keys
}

func newRing(n int) (*signer.Ring, error) {
	var signers []signer.Signer
	for _, key := range privateKeys(n) {
		signer, err := signer.NewLocal(key)
		if err != nil {
			return nil, err
		}
		signers = append(signers, signer)
	}
	return signer.New(signers...)
}

// relayerProcess is one process of the product, started like a user does.
type relayerProcess struct {
	*process
	dir  string
	addr string
}

// startRelayer starts a relayer with keyCount keys and one webhook target, on a new database. It returns when the
// relayer can relay.
func (s *suite) startRelayer(ctx context.Context, databaseURL string, node *geth, keyCount int, webhooks string) (r *relayerProcess, err error) {
	dir, err := s.freshDir("relayer")
	if err != nil {
		return nil, err
	}
	addrs, err := freeAddresses(1)
	if err != nil {
		return nil, err
	}
	r = &relayerProcess{dir: dir, addr: addrs[0]}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	var keys []string
	for _, key := range privateKeys(keyCount) {
		keys = append(keys, hex.EncodeToString(key))
	}
	list, err := json.Marshal(keys)
	if err != nil {
		return nil, err
	}
	r.process, err = start("relayer", dir, []string{
		"RELAYER_LISTEN=" + r.addr, "DATABASE_URL=" + databaseURL, "RELAYER_POOL_ID=" + poolID,
		fmt.Sprintf("RELAYER_CHAIN_ID=%d", chainID), "RELAYER_RPC_URLS=http://" + node.addr, "RELAYER_SUBSCRIBE_URL=ws://" + node.addr,
		fmt.Sprintf("RELAYER_MAX_PENDING_PER_KEY=%d", inFlight), fmt.Sprintf("RELAYER_MAX_QUEUED=%d", 2*waitingCount), "RELAYER_RATE_LIMIT=0",
		"RELAYER_WEBHOOK_URL=" + webhooks, "RELAYER_WEBHOOK_SIGNING_KEY=" + webhookKey, "RELAYER_WEBHOOK_ALLOW_PRIVATE=true",
		"RELAYER_API_KEYS=bench:" + apiKey, signer.VarKeysJSON + "=" + string(list),
	}, s.rollcall, "relayer")
	if err != nil {
		return nil, err
	}
	return r, until(ctx, 30*time.Second, func(ctx context.Context) error {
		if err := r.running(); err != nil {
			return err
		}
		_, err := httpGet(ctx, "http://"+r.addr+"/health")
		return err
	})
}

func (r *relayerProcess) close() {
	if r.process != nil {
		r.kill()
	}
	os.RemoveAll(r.dir)
}
