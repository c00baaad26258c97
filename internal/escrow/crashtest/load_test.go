package crashtest

import (
	"encoding/json"
	"math/big"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dev/contract"
	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

// payers is how many accounts create escrows at a time.
const payers = 4

// load creates and settles escrows until it is stopped.
type load struct {
	w       *world
	ended   atomic.Bool
	settled atomic.Int64
	work    sync.WaitGroup
}

func (w *world) load() *load {
	l := &load{w: w}
	for _, payer := range w.node.Accounts {
		l.work.Go(func() {
			for number := 0; !l.ended.Load() && w.t.Context().Err() == nil; number++ {
				if err := w.settle(payer, number); err != nil {
					if w.t.Context().Err() == nil {
						w.t.Errorf("settle an escrow: %v", err)
					}
					return
				}
				l.settled.Add(1)
			}
		})
	}
	w.t.Cleanup(l.stop)
	return l
}

// stop ends the load. It may be called again.
func (l *load) stop() {
	l.ended.Store(true)
	l.work.Wait()
}

// further returns when more escrows have been settled.
func (l *load) further(n int64) {
	l.w.t.Helper()
	until := l.settled.Load() + n
	l.w.await(func() bool { return l.settled.Load() >= until }, "no further escrows are settled")
}

// settle creates an escrow, and releases it or, if the number is odd, refunds it.
func (w *world) settle(payer testchain.Account, number int) error {
	send := func(to common.Address, data []byte) (*types.Receipt, error) {
		return contract.Send(w.t.Context(), w.node.Client(), payer.Key, contract.Transaction{To: &to, Value: new(big.Int), Data: data, Gas: 2_000_000})
	}
	// The payer is its own arbiter, so that one key can do both.
	receipt, err := send(w.factory, escrowchain.Create(escrowchain.Terms{
		Payee: escrowchain.DemoPayee(), Arbiter: payer.Address, ReleaseDelay: 3600, ApprovalsRequired: 1,
	}))
	if err != nil {
		return err
	}
	escrow, err := escrowchain.Created(receipt)
	if err != nil {
		return err
	}
	settle := escrowchain.Approve()
	if number%2 == 1 {
		settle = escrowchain.Refund()
	}
	_, err = send(escrow, settle)
	return err
}

// fact is what the chain and a message must have in common.
type fact struct {
	Type              string
	Contract          common.Address
	Block             uint64
	BlockHash, TxHash common.Hash
	LogIndex          uint64
	ID                string
	Status            events.Status
	Added             bool // by an operator
}

// truth returns the events of the chain by escrow, in order.
func (w *world) truth() map[common.Address][]fact {
	w.t.Helper()
	names := map[common.Hash]string{}
	for _, contract := range []abi.ABI{escrowchain.FactoryABI(), escrowchain.EscrowABI()} {
		for name, e := range contract.Events {
			names[e.ID] = name
		}
	}
	logs, err := w.node.Client().FilterLogs(w.t.Context(), ethereum.FilterQuery{FromBlock: big.NewInt(1)})
	require.NoError(w.t, err)
	all := map[common.Address][]fact{}
	for i := range logs {
		l := &logs[i]
		escrow := l.Address
		if escrow == w.factory {
			escrow = common.BytesToAddress(l.Topics[1][:])
		}
		all[escrow] = append(all[escrow], fact{
			Type: names[l.Topics[0]], Contract: l.Address, Block: l.BlockNumber, BlockHash: l.BlockHash, TxHash: l.TxHash, LogIndex: uint64(l.Index),
			ID: strings.ToLower(strings.Join([]string{"1337", l.TxHash.Hex(), l.Address.Hex(), l.Topics[0].Hex(), "0"}, ":")), Status: events.Final,
		})
	}
	return all
}

// received returns the messages by escrow in the order of their sequences, and how many were repeated. It fails if an escrow's messages
// came in another order, or if a repetition differs, or if no fault has struck the instance that had sent the message before.
func (w *world) received() (all map[common.Address][]fact, repeated int) {
	w.t.Helper()
	all = map[common.Address][]fact{}
	latest := map[string]arrival{} // by escrow and sequence
	used := map[string]int{}       // by escrow and sequence, the strikes that explain repetitions so far
	for _, a := range w.topic.all() {
		var m events.Message
		require.NoError(w.t, json.Unmarshal(a.Data, &m))
		require.Equal(w.t, m.Attributes(), a.Attributes)
		require.Equal(w.t, m.OrderingKey(), a.OrderingKey)
		key := a.OrderingKey + "/" + a.Attributes["sequence"]
		before, again := latest[key]
		latest[key] = a
		if again {
			require.Equal(w.t, string(before.Data), string(a.Data), "%s was sent by %s and by %s", key, before.by, a.by)
			i := slices.IndexFunc(w.strikes[used[key]:], func(s strike) bool { return (s.name == "" || s.name == before.by) && s.inFlight[string(a.Data)] })
			require.GreaterOrEqual(w.t, i, 0, "%s was sent by %s, which had no fault then, and again by %s", key, before.by, a.by)
			used[key] += i + 1
			repeated++
			continue
		}
		require.EqualValues(w.t, len(all[m.Escrow])+1, m.Sequence, "escrow %s, by %s", m.Escrow, a.by)
		all[m.Escrow] = append(all[m.Escrow], fact{
			Type: m.Type, Contract: m.Contract, Block: m.BlockNumber, BlockHash: m.BlockHash, TxHash: m.TxHash, LogIndex: m.LogIndex,
			ID: m.EventID, Status: m.Status, Added: m.Late || m.Replay,
		})
	}
	return all, repeated
}

// check waits until the topic has as many messages as the chain has events, and nothing waits, and compares them.
func (w *world) check() {
	w.t.Helper()
	want := w.truth()
	count := func(all map[common.Address][]fact) (n int) {
		for _, of := range all {
			n += len(of)
		}
		return n
	}
	require.NotEmpty(w.t, want)
	w.await(func() bool { all, _ := w.received(); return count(all) >= count(want) }, "messages are missing")
	w.await(func() (empty bool) {
		require.NoError(w.t, w.db.QueryRow(w.t.Context(), `SELECT NOT EXISTS (SELECT FROM escrow_outbox WHERE state <> 'done')`).Scan(&empty))
		return empty
	}, "messages wait although the topic has them")
	got, repeated := w.received()
	require.Equal(w.t, want, got)
	require.Zero(w.t, w.chain().Repeated, "events were stored again")
	var back int
	require.NoError(w.t, w.db.QueryRow(w.t.Context(), `SELECT count(*) FROM steps_back`).Scan(&back))
	require.Zero(w.t, back, "the cursor went back")
	w.t.Logf("%d escrows, %d events, %d messages repeated because of %d faults", len(want), count(want), repeated, len(w.strikes))
}
