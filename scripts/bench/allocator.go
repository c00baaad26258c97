package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// form is a way to give transactions nonces, sign them, and store both durably.
type form string

const (
	formPool     form = "pool"     // the product's
	formRecorded form = "recorded" // the product's, which also records the nodes' answers
	formSix      form = "six"      // six round trips under an advisory lock
	formTwo      form = "two"      // one statement to claim and insert, one to store the signed bytes, each committed
)

var forms = []form{formPool, formRecorded, formSix, formTwo}

// databaseVar holds the URL of the allocator's database, a secret.
const databaseVar = "BENCH_DATABASE_URL"

// allocated is the result of an allocator in its window.
type allocated struct {
	result
	Own, Postgres float64 // processor time of each for one transaction, in µs
}

// allocator is a process that allocates as fast as it can in one form, and prints its result.
func allocator(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("allocator", flag.ExitOnError)
	name := flags.String("form", "", "pool, recorded, six or two")
	keys := flags.Int("keys", 1, "how many keys there are")
	callers := flags.Int("callers", 1, "how many wait at the same time; each has a connection, but those of the pool")
	postmaster := flags.Int("postmaster", 0, "pid of the server, for its processor time")
	warm := flags.Duration("warm", time.Second, "not counted")
	window := flags.Duration("window", time.Second, "counted")
	if err := flags.Parse(args); err != nil {
		return err
	}
	begin, ok := map[form]func(context.Context, string, int, int) (allocate, func(), error){
		formPool:     poolOf(false),
		formRecorded: poolOf(true),
		formSix:      plainOf(sixTrips),
		formTwo:      plainOf(twoStatements),
	}[form(*name)]
	if !ok {
		return fmt.Errorf("no form is called %q", *name)
	}
	do, end, err := begin(ctx, os.Getenv(databaseVar), *keys, *callers)
	if err != nil {
		return err
	}
	defer end()

	var marks []usage
	mark := func() error {
		u, err := readUsage(*postmaster)
		marks = append(marks, u)
		return err
	}
	res, err := load{Callers: *callers, Warm: *warm, Window: *window, Mark: mark}.run(ctx, do)
	if err != nil {
		return err
	}
	each := func(used time.Duration) float64 { return float64(used.Microseconds()) / float64(res.Operations) }
	return json.NewEncoder(os.Stdout).Encode(allocated{
		result: res, Own: each(marks[1].own - marks[0].own), Postgres: each(marks[1].postgres - marks[0].postgres),
	})
}

// usage is the processor time so far.
type usage struct{ own, postgres time.Duration }

func readUsage(postmaster int) (u usage, err error) {
	if u.own, err = ownCPU(); err != nil {
		return u, err
	}
	u.postgres, err = postgresCPU(postmaster)
	return u, err
}

// allocate makes one allocation for a caller, and returns how many have been stored since its last call.
type allocate func(ctx context.Context, caller int) (int, error)

// anybody is the receiver of all transactions.
var anybody = common.HexToAddress("0xd1e5000000000000000000000000000000000000")

// fees are constant.
var fees = evm.Fees{
	EIP1559: true, BaseFee: big.NewInt(1_000_000_000), GasPrice: big.NewInt(2_000_000_000),
	Tips: [4]*big.Int{big.NewInt(1_000_000_000), big.NewInt(1_000_000_000), big.NewInt(1_000_000_000), big.NewInt(1_000_000_000)},
}

// poolOf assembles the product's own parts, from the pool's intake to the stored attempt, as cmd/rollcall does.
func poolOf(record bool) func(ctx context.Context, url string, keys, callers int) (allocate, func(), error) {
	return func(ctx context.Context, url string, keys, _ int) (allocate, func(), error) {
		ring, err := newRing(keys)
		if err != nil {
			return nil, nil, err
		}
		if err := postgres.Migrate(ctx, url, store.Migrations()); err != nil {
			return nil, nil, err
		}
		db, err := postgres.Open(ctx, postgres.Config{URL: url})
		if err != nil {
			return nil, nil, err
		}
		uncounted := store.New(db, store.Config{ChainID: chainID, Pool: poolID})
		if _, err := uncounted.InitChain(ctx, common.Hash{1}); err != nil {
			return nil, nil, err
		}
		var registrations []store.Registration
		for _, address := range ring.Addresses() {
			registrations = append(registrations, store.Registration{Address: address})
		}
		if err := uncounted.Register(ctx, registrations); err != nil {
			return nil, nil, err
		}
		counting := &counted{Store: uncounted, record: record}
		log := slog.New(slog.DiscardHandler)
		send := sender.New(sender.Config{ChainID: chainID, Ring: ring, Chain: agreeable{}, Store: counting, Log: log})
		relay := service.New(service.Config{
			ID: poolID, Store: uncounted, Sender: send, Chain: agreeable{}, Ring: ring, Log: log, Enabled: true, Cap: 1 << 30,
		})
		var parts errgroup.Group
		accepting, stop := context.WithCancel(context.WithoutCancel(ctx))
		sending, stopSender := context.WithCancel(context.WithoutCancel(ctx))
		parts.Go(func() error { defer stopSender(); return relay.Run(accepting) })
		parts.Go(func() error { return send.Run(sending) })
		end := func() {
			stop()
			_ = parts.Wait() // neither fails
			db.Close()
		}
		if err := compare(ctx, uncounted); err != nil {
			end()
			return nil, nil, err
		}
		return func(ctx context.Context, _ int) (int, error) {
			_, err := relay.Submit(ctx, api.Submission{RelayerID: poolID, Caller: "bench", Request: relayer.Request{
				To: &anybody, Value: big.NewInt(1), GasLimit: transferGas, Speed: relayer.Fast,
			}})
			return int(counting.stored.Swap(0)), err
		}, end, nil
	}
}

// compare records that the keys were compared with the chain, like a tracker's round: before that the pool assigns no
// nonce.
func compare(ctx context.Context, store *store.Store) error {
	return until(ctx, 10*time.Second, func(ctx context.Context) error {
		keys, err := store.Keys(ctx)
		if err != nil {
			return err
		}
		var addresses []common.Address
		for _, k := range keys {
			addresses = append(addresses, k.Address)
		}
		if err := store.Compared(ctx, addresses, keys[0].Era, keys[0].ReadAt); err != nil {
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

// counted counts the first attempts that are stored. Unless record is set, it does not store the nodes' answers, which
// come after the measured part.
type counted struct {
	*store.Store
	record bool
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

func (c *counted) RecordBroadcasts(ctx context.Context, broadcasts []store.Broadcast) error {
	if !c.record {
		return nil
	}
	return c.Store.RecordBroadcasts(ctx, broadcasts)
}

// agreeable is a chain that accepts every transaction at once. It has no blocks: no keys are registered or tracked with
// it.
type agreeable struct{}

func (agreeable) Fees(context.Context) (evm.Fees, error) { return fees, nil }

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

var errNoBlocks = errors.New("this chain has no blocks")

func (agreeable) EstimateGas(context.Context, evm.Message) (uint64, error) { return 0, errNoBlocks }

func (agreeable) Balances(context.Context, []common.Address) ([]*big.Int, error) {
	return nil, errNoBlocks
}

func (agreeable) Call(context.Context, string, json.RawMessage) (json.RawMessage, error) {
	return nil, errNoBlocks
}

func (agreeable) Counts(context.Context, common.Hash, []common.Address) []evm.Counts {
	return []evm.Counts{{Err: errNoBlocks}}
}

func (agreeable) Head() evm.Header   { return evm.Header{} }
func (agreeable) Status() evm.Status { return evm.Status{} }
