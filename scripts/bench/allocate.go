package main

import (
	"context"
	"errors"
	"log/slog"
	"math/big"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

// way is a way to give transactions nonces, sign them, and store both durably. It returns a call that does that for one
// transaction, and returns how many were stored since the last call.
type way struct {
	row     string
	callers []int // numbers that are tried
	start   func(t *trial, url string, keys, callers int) call
}

var (
	pool = way{"allocated, signed and stored", []int{64, 128, 256, 512, 1024, 2048}, startPool}
	six  = way{"advisory lock, six round trips", []int{1, 2, 4, 8, 16, 32, 64, 128}, startSix}
)

// allocation measures the product's allocation and its peer on one Postgres, each with its best number of callers.
func allocation(t *trial) {
	server := t.startPostgres()
	var steps []step
	for _, keys := range []int{1, relayerKeys} {
		for _, w := range []way{pool, six} {
			allocate := func(t *trial, l load) result {
				return t.run(l, w.start(t, t.freshDatabase(server, "allocation"), keys, l.Callers))
			}
			best := fastest(t, w.callers, func(callers int) (res result) {
				t.check(t.try(t.ctx, func(t *trial) {
					res = allocate(t, load{Callers: callers, Warm: t.warm / 2, Window: t.window / 2})
				}))
				return res
			})
			steps = append(steps, contender(w.name(keys), func(t *trial) result { return allocate(t, t.load(best)) }))
		}
	}
	t.inRounds(steps...)
	for _, keys := range []int{1, relayerKeys} {
		t.versus(six.name(keys), pool.name(keys), "/s").atLeast(map[int]float64{1: 3, relayerKeys: 2}[keys])
	}
}

func (w way) name(keys int) string {
	return w.row + map[int]string{1: ", 1 key", relayerKeys: ", 16 keys"}[keys]
}

// startPool assembles the product's own parts, from the pool's intake to the stored attempt, as cmd/rollcall does.
func startPool(t *trial, url string, keys, _ int) call {
	ring, _ := t.newRing(keys)
	t.check(postgres.Migrate(t.ctx, url, store.Migrations()))
	db, err := postgres.Open(t.ctx, postgres.Config{URL: url})
	t.check(err)
	t.Cleanup(db.Close)
	counting := &counted{Store: store.New(db, store.Config{ChainID: chain.ChainID, Pool: poolID})}
	_, err = counting.InitChain(t.ctx, common.Hash{1})
	t.check(err)
	var registrations []store.Registration
	for _, address := range ring.Addresses() {
		registrations = append(registrations, store.Registration{Address: address})
	}
	t.check(counting.Register(t.ctx, registrations))
	log := slog.New(slog.DiscardHandler)
	send := sender.New(sender.Config{ChainID: chain.ChainID, Ring: ring, Chain: agreeable{}, Store: counting, Log: log})
	relay := service.New(service.Config{
		ID: poolID, Store: counting.Store, Sender: send, Chain: agreeable{}, Ring: ring, Log: log, Enabled: true, Cap: 1 << 30,
	})
	var parts errgroup.Group
	accepting, stop := context.WithCancel(context.WithoutCancel(t.ctx))
	sending, stopSender := context.WithCancel(context.WithoutCancel(t.ctx))
	parts.Go(func() error { defer stopSender(); return relay.Run(accepting) })
	parts.Go(func() error { return send.Run(sending) })
	t.Cleanup(func() {
		stop()
		_ = parts.Wait() // neither fails
	})
	t.compare(counting.Store)
	return func(ctx context.Context, _, _ int) (int, error) {
		_, err := relay.Submit(ctx, relayer.Submission{RelayerID: poolID, Caller: "bench", Request: relayer.Request{
			To: &receiver, Value: big.NewInt(1), GasLimit: transferGas, Speed: relayer.Fast,
		}})
		return int(counting.stored.Swap(0)), err
	}
}

// compare records that the keys were compared with the chain, like a tracker's round: before that the pool assigns no
// nonce.
func (t *trial) compare(store *store.Store) {
	t.until(10*time.Second, func(ctx context.Context) error {
		keys, err := store.Keys(ctx)
		if err != nil {
			return err
		}
		var addresses []common.Address
		for _, k := range keys {
			addresses = append(addresses, k.Address)
		}
		if err := store.Compared(ctx, addresses, keys[0].Generation, keys[0].ReadAt); err != nil {
			return err
		}
		if keys, err = store.Keys(ctx); err != nil {
			return err
		}
		if slices.ContainsFunc(keys, func(k *relayer.Key) bool { return !store.Trusts(k) }) {
			return errors.New("the pool has not registered its keys yet")
		}
		return nil
	})
}

// counted counts the first attempts that are stored. It does not store the nodes' answers, which come after the
// measured part.
type counted struct {
	*store.Store
	stored atomic.Int64
}

func (c *counted) StoreAttempts(ctx context.Context, attempts []*relayer.Attempt) ([]bool, error) {
	stored, err := c.Store.StoreAttempts(ctx, attempts)
	for _, yes := range stored {
		if yes {
			c.stored.Add(1)
		}
	}
	return stored, err
}

func (c *counted) RecordBroadcasts(context.Context, []store.Broadcast) error { return nil }

// agreeable is a chain that accepts every transaction at once. It has no blocks and no balances: keys are neither
// registered nor tracked with it.
type agreeable struct{ service.Chain }

func (agreeable) MaxTransferGas() uint64 { return 30_000_000 }

func (agreeable) Fees(context.Context) (evm.Fees, error) {
	return evm.Fees{EIP1559: true, BaseFee: tip, GasPrice: fee, Tips: [4]*big.Int{tip, tip, tip, tip}}, nil
}
func (agreeable) Head() evm.Header   { return evm.Header{} }
func (agreeable) Status() evm.Status { return evm.Status{} }

func (agreeable) TransferGas(context.Context, common.Address, common.Address, bool) uint64 {
	return transferGas
}

func (agreeable) Send(_ context.Context, txs []evm.Raw) []evm.Result {
	results := make([]evm.Result, len(txs))
	for i := range results {
		results[i].Outcome = evm.Accepted
	}
	return results
}

func (a agreeable) SendToAll(ctx context.Context, txs []evm.Raw) []evm.Result {
	return a.Send(ctx, txs)
}

// The peer of the product's allocation: each caller has a connection, and does one transaction at a time, like services
// that lock a key in Postgres. Its table holds the request and the signed bytes, and only the indexes that it needs.
const sixTripsTable = `
	CREATE TABLE txs (
		id uuid PRIMARY KEY, chain_id bigint NOT NULL, address text NOT NULL, nonce bigint NOT NULL, status text NOT NULL,
		caller text NOT NULL, recipient text, value_wei numeric(78, 0) NOT NULL, data bytea NOT NULL, gas_limit bigint NOT NULL,
		speed text NOT NULL, tx_hash text, raw bytea, created_at timestamptz NOT NULL DEFAULT now(),
		UNIQUE (chain_id, address, nonce)
	)`

// startSix does everything in one database transaction under the key's advisory lock.
func startSix(t *trial, url string, keys, callers int) call {
	ring, _ := t.newRing(keys)
	conns := make([]*pgx.Conn, callers)
	for i := range conns {
		conns[i] = t.connect(url)
	}
	_, err := conns[0].Exec(t.ctx, sixTripsTable)
	t.check(err)
	return func(ctx context.Context, caller, _ int) (int, error) {
		// Each caller uses one key: this minimizes waiting between callers.
		conn, key := conns[caller], caller%keys
		address := ring.Addresses()[key]
		signer, _ := ring.Signer(address)
		from, id := strings.ToLower(address.Hex()), uuid.Must(uuid.NewV7())
		return 1, pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(key)); err != nil {
				return err
			}
			var nonce int64
			const last = "SELECT coalesce(max(nonce) + 1, 0) FROM txs WHERE chain_id = $1 AND address = $2"
			if err := tx.QueryRow(ctx, last, chain.ChainID, from).Scan(&nonce); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT INTO txs (id, chain_id, address, nonce, status, caller, recipient, value_wei, data, gas_limit, speed)
				VALUES ($1, $2, $3, $4, 'allocated', 'bench', $5, $6, '', $7, 'fast')`,
				id, chain.ChainID, from, nonce, strings.ToLower(receiver.Hex()), "1", transferGas)
			if err != nil {
				return err
			}
			signed, err := signTransfer(ctx, signer, uint64(nonce))
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, "UPDATE txs SET tx_hash = $2, raw = $3 WHERE id = $1", id, signed.Hash.Hex(), signed.Raw)
			return err
		})
	}
}
