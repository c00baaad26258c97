package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/params"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/rollcall-dev/rollcall/internal/dev/pgserver"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain"
	"github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

const (
	relayerKeys = 16
	// inFlight is how many transactions a key may have pending: as many as the node's pool accepts of one.
	inFlight = 100_000
	apiKey   = "a-key-that-nothing-but-a-benchmark-has"
	poolID   = "pool"
	// webhookKey signs webhooks for the benchmark's own target.
	webhookKey  = "a-webhook-key-that-nothing-but-a-benchmark-has"
	transferGas = params.TxGas
)

// receiver is the receiver of all transactions.
var receiver = common.HexToAddress("0xd1e5000000000000000000000000000000000000")

// newRing returns n keys, the same ones each time, also in hex. Never pay to them on a chain with value.
func (t *trial) newRing(n int) (ring *signer.Ring, keys []string) {
	signers := make([]signer.Signer, n)
	for i := range signers {
		sum := sha256.Sum256(fmt.Appendf(nil, "rollcall key of a benchmark, worth nothing: %d", i))
		local, err := signer.NewLocal(sum[:])
		t.check(err)
		signers[i], keys = local, append(keys, hex.EncodeToString(sum[:]))
	}
	ring, err := signer.New(signers...)
	t.check(err)
	return ring, keys
}

// tip and fee are what all transactions of the peers offer. geth's development mode begins with a base fee of 1 gwei.
var tip, fee = big.NewInt(1_000_000_000), big.NewInt(100_000_000_000)

// signTransfer signs the transaction of all contenders: a transfer of one wei.
func signTransfer(ctx context.Context, key signer.Signer, nonce uint64) (signer.Signed, error) {
	id := big.NewInt(chain.ChainID)
	return signer.SignRaw(ctx, key, types.NewTx(&types.DynamicFeeTx{
		ChainID: id, Nonce: nonce, To: &receiver, Value: common.Big1, Gas: transferGas, GasFeeCap: fee, GasTipCap: tip,
	}), id)
}

// relayed is a new, empty relayer with everything that it needs: Postgres, a node, and a webhook target.
type relayed struct {
	t       *trial
	relayer *proc.Process
	addr    string
	hooks   string // URL of the webhook target
	db      *pgserver.Server
	conn    *pgx.Conn
	node    *chain.Node
	keys    []common.Address
	total   int // posted so far
}

// startRelayed starts a relayer like a user does. It returns when connections are open and statements prepared. The
// node alone needs neither.
func (t *trial) startRelayed(keys int) *relayed {
	ring, private := t.newRing(keys)
	list, err := json.Marshal(private)
	t.check(err)
	r := &relayed{t: t, keys: ring.Addresses(), addr: t.addresses(1)[0], hooks: t.startFleet().webhooks, db: t.startPostgres()}
	r.node = t.startGeth(r.keys)
	url := t.freshDatabase(r.db, "relay")
	r.conn = t.connect(url)
	r.relayer = t.start(t.TempDir(), []string{
		"RELAYER_LISTEN=" + r.addr, "DATABASE_URL=" + url, "RELAYER_POOL_ID=" + poolID,
		fmt.Sprint("RELAYER_CHAIN_ID=", chain.ChainID), "RELAYER_RPC_URLS=" + r.node.URL(), "RELAYER_SUBSCRIBE_URL=" + r.node.WSURL(),
		fmt.Sprint("RELAYER_MAX_PENDING_PER_KEY=", inFlight), fmt.Sprint("RELAYER_MAX_QUEUED=", 2*t.waiting), "RELAYER_RATE_LIMIT=0",
		fmt.Sprint("RELAYER_CONFIRMATIONS=", t.confirmations),
		"RELAYER_WEBHOOK_URL=" + r.hooks, "RELAYER_WEBHOOK_SIGNING_KEY=" + webhookKey, "RELAYER_WEBHOOK_ALLOW_PRIVATE=true",
		"RELAYER_API_KEYS=bench:" + apiKey, signer.VarKeysJSON + "=" + string(list),
	}, "", t.rollcall, "relayer")
	t.until(30*time.Second, func(ctx context.Context) error {
		_, err := httpGet(ctx, "http://"+r.addr+"/health")
		return errors.Join(err, r.relayer.Running())
	})
	r.send(t, t.burst/20, 0, false)
	return r
}

// transfer returns a request that posts a transfer of one wei to a relayer. headers must end with a line break, unless
// empty.
func transfer(relayer, headers string) []byte {
	return postRequest("/api/v1/relayers/"+relayer+"/transactions", "Authorization: Bearer "+apiKey+"\r\n"+headers,
		fmt.Sprintf(`{"to":"%s","value":1,"data":"0x","gas_limit":%d,"speed":"fast"}`, receiver.Hex(), transferGas))
}

// accepted is in the relayer's answer to a POST.
const accepted = `"success":true`

// send posts n transactions for the pool, and waits until they are mined.
func (r *relayed) send(t *trial, n int, rate float64, idempotent bool) (posts result, mined time.Time) {
	plain, first := transfer(poolID, ""), r.total
	posts = t.post(r.addr, n, rate, func(n int) []byte {
		if !idempotent {
			return plain
		}
		return transfer(poolID, "Idempotency-Key: bench-"+strconv.Itoa(first+n)+"\r\n")
	}, accepted)
	r.total += n
	return posts, t.mined(r.node, r.keys, uint64(r.total))
}

// number returns the result of a query of the relayer's database.
func (r *relayed) number(query string) (n float64) {
	r.t.check(r.conn.QueryRow(r.t.ctx, query).Scan(&n))
	return n
}

// waitingWebhooks returns how many webhooks are stored and not delivered.
func (r *relayed) waitingWebhooks() float64 {
	return r.number("SELECT count(*) FROM relayer_webhooks WHERE state = 'waiting'")
}

// deliveredWebhooks returns how many webhooks have arrived.
func (r *relayed) deliveredWebhooks() float64 {
	n, err := strconv.ParseFloat(string(r.t.get(r.hooks)), 64)
	r.t.check(err)
	return n
}

// logged returns how many bytes the server has written to its log.
func (r *relayed) logged() float64 { return r.number("SELECT pg_current_wal_insert_lsn() - '0/0'") }

// settle returns when all posted transactions are final, and their webhooks are delivered.
func (r *relayed) settle() {
	r.t.until(time.Minute, func(context.Context) error {
		if open := r.number("SELECT count(*) FROM relayer_txs WHERE open") + r.waitingWebhooks(); open > 0 {
			return fmt.Errorf("%.0f transactions are not final, or webhooks not delivered", open)
		}
		return nil
	})
}

// fillQueue makes transactions wait for the last key. It raises the key's count of pending transactions in the store
// above the relayer's limit, so that the end of earlier ones does not free a slot.
func (r *relayed) fillQueue() {
	address := strings.ToLower(r.keys[len(r.keys)-1].Hex())
	tag, err := r.conn.Exec(r.t.ctx, "UPDATE relayer_keys SET pending_count = $1 WHERE address = $2", 2*inFlight, address)
	r.t.check(err)
	if tag.RowsAffected() != 1 {
		r.t.Fatalf("the store has no key %s", address)
	}
	request := transfer(address, "")
	r.t.post(r.addr, r.t.waiting, 0, func(int) []byte { return request }, accepted)
	if n := r.number("SELECT count(*) FROM relayer_txs WHERE open AND nonce IS NULL"); n != float64(r.t.waiting) {
		r.t.Fatalf("%.0f transactions wait for a key, not %d", n, r.t.waiting)
	}
}

// headLags returns how long the relayer took from a block's arrival, by its subscription, until the changes were
// stored, by the relayer's own metric: numbers of values by upper limit in seconds.
func (r *relayed) headLags() map[float64]float64 {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(r.t.get("http://" + r.addr + "/metrics")))
	r.t.check(err)
	buckets := make(map[float64]float64)
	for _, metric := range families["rollcall_relayer_head_lag_seconds"].GetMetric() {
		for _, b := range metric.GetHistogram().GetBucket() {
			buckets[b.GetUpperBound()] = float64(b.GetCumulativeCount())
		}
	}
	return buckets
}
