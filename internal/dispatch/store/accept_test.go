package store

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

// A stored transaction is queued, with its first history row, and reads back unchanged, whatever its size.
func TestAccept_StoresAndQueues(t *testing.T) {
	f := setup(t)
	tx := transaction("shop")
	tx.ClientID, tx.Traceparent = "order-1", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	tx.Value = new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))
	f.accept(tx)
	got, err := f.Get(t.Context(), "shop", "order-1")
	require.NoError(t, err)
	require.Equal(t, dispatch.Queued, got.Status)
	require.Equal(t, tx.Call, got.Call)
	require.Equal(t, tx.Traceparent, got.Traceparent)
	require.Equal(t, 1, f.count(`SELECT count(*) FROM relay_queue WHERE id = $1`, tx.ID))
	history, err := f.History(t.Context(), tx.ID)
	require.NoError(t, err)
	require.Len(t, history, 1)
	require.Equal(t, dispatch.Queued, history[0].Status)
	require.Zero(t, f.count(`SELECT count(*) FROM relay_webhooks`), "queued is not reported to the client")
}

// The same id or key of a client gives the stored transaction, another request with it fails, and another client is not
// affected.
func TestAccept_Repeated_IsTheSameTransaction(t *testing.T) {
	f := setup(t)
	for name, set := range map[string]func(*dispatch.Transaction){
		"id":  func(tx *dispatch.Transaction) { tx.ClientID = "order-1" },
		"key": func(tx *dispatch.Transaction) { tx.IdempotencyKey = "key-1" },
	} {
		first := transaction("shop-" + name)
		set(first)
		f.accept(first)
		again := transaction("shop-" + name)
		set(again)
		require.Equal(t, first.ID, f.accept(again).ID, name)

		other := transaction("shop-" + name)
		set(other)
		other.Value = big.NewInt(6)
		results, err := f.Accept(t.Context(), []*dispatch.Transaction{other})
		require.NoError(t, err)
		require.ErrorIs(t, results[0].Err, dispatch.ErrReused, name)

		stranger := transaction("stranger-" + name)
		set(stranger)
		require.Equal(t, stranger.ID, f.accept(stranger).ID, name)
		_, err = f.Get(t.Context(), "stranger-"+name, first.ID.String())
		require.ErrorIs(t, err, dispatch.ErrNotFound)
	}
	require.Equal(t, 4, f.count(`SELECT count(*) FROM relay_queue`))
}

// The id that a transaction was given is a name of it. Another client may choose the same text.
func TestAccept_NamedByAGivenID_IsThatTransaction(t *testing.T) {
	f := setup(t)
	unnamed := f.accept(transaction("shop"))
	named := func(client string, value int64) *dispatch.Transaction {
		tx := transaction(client)
		tx.ClientID, tx.Value = strings.ToUpper(unnamed.ID.String()), big.NewInt(value)
		return tx
	}
	require.Equal(t, unnamed.ID, f.accept(named("shop", 5)).ID)
	results, err := f.Accept(t.Context(), []*dispatch.Transaction{named("shop", 6)})
	require.NoError(t, err)
	require.ErrorIs(t, results[0].Err, dispatch.ErrReused)
	stranger := named("stranger", 5)
	require.Equal(t, stranger.ID, f.accept(stranger).ID)

	tx := transaction("shop")
	tx.IdempotencyKey = "k"
	keyed := f.accept(tx)
	later := transaction("shop")
	later.ClientID, later.IdempotencyKey = "order-1", "k"
	require.Equal(t, keyed.ID, f.accept(later).ID)
	for _, id := range []string{"order-1", keyed.ID.String()} {
		got, err := f.Get(t.Context(), "shop", id)
		require.NoError(t, err)
		require.Equal(t, keyed.ID, got.ID)
	}
	byGivenID := transaction("shop")
	byGivenID.ClientID = keyed.ID.String()
	require.Equal(t, keyed.ID, f.accept(byGivenID).ID, "it has another name by now")
	require.Equal(t, 3, f.count(`SELECT count(*) FROM relay_queue`))
}

// names are those of a request: a transaction id and an idempotency key.
type names struct{ id, key string }

func (n names) request(client string, gasless bool) *dispatch.Transaction {
	tx := transaction(client)
	tx.ClientID, tx.IdempotencyKey = n.id, n.key
	if gasless {
		tx.Kind = dispatch.Gasless
		tx.Forward = &dispatch.Forward{Signer: common.Address{7}, Nonce: new(big.Int).SetBytes([]byte(client)), Deadline: 1<<48 - 1}
	}
	return tx
}

// A name that a 202 has answered finds the same transaction in each later request, also alone, whichever names came first. A request
// whose names are those of two transactions is rejected.
func TestAccept_MixedNames_AreOneTransaction(t *testing.T) {
	f := setup(t)
	all := []names{{id: "T"}, {key: "K"}, {"T", "K"}}
	for _, gasless := range []bool{false, true} {
		for _, first := range all {
			for _, second := range all {
				for _, third := range all {
					client := fmt.Sprint(gasless, first, second, third)
					bound := map[string]uuid.UUID{} // by the names that a 202 has answered
					for _, n := range []names{first, second, third, {id: "T"}, {key: "K"}} {
						results, err := f.Accept(t.Context(), []*dispatch.Transaction{n.request(client, gasless)})
						require.NoError(t, err)
						id, named := bound["id"+n.id]
						byKey, keyed := bound["key"+n.key]
						named, keyed = named && n.id != "", keyed && n.key != ""
						if err := results[0].Err; err != nil {
							if gasless && !named && !keyed {
								require.ErrorIs(t, err, dispatch.ErrNonceTaken, client)
								continue
							}
							require.ErrorIs(t, err, dispatch.ErrReused, client)
							require.True(t, named && keyed && id != byKey, "%s: %v conflicts with nothing", client, n)
							continue
						}
						got := results[0].Transaction.ID
						if named {
							require.Equal(t, id, got, "%s: %v", client, n)
						}
						if keyed {
							require.Equal(t, byKey, got, "%s: %v", client, n)
						}
						if n.id != "" {
							bound["id"+n.id] = got
							read, err := f.Get(t.Context(), client, n.id)
							require.NoError(t, err)
							require.Equal(t, got, read.ID)
						}
						if n.key != "" {
							bound["key"+n.key] = got
						}
					}
				}
			}
		}
	}
}

// Requests at the same moment, in one batch and in several, with one of two names and with both, never make two transactions of names
// that one 202 has bound.
func TestAccept_MixedNamesConcurrently_AreOneTransaction(t *testing.T) {
	f := setup(t)
	for name, mix := range map[string][]names{
		"id and both": {{id: "T"}, {"T", "K"}}, "key and both": {{key: "K"}, {"T", "K"}}, "all": {{id: "T"}, {key: "K"}, {"T", "K"}},
	} {
		for round := range 15 {
			client := fmt.Sprint(name, round)
			var wg sync.WaitGroup
			var mu sync.Mutex
			var bound []dispatch.Transaction
			for i := range 4 * len(mix) {
				wg.Go(func() {
					batch := []*dispatch.Transaction{mix[i%len(mix)].request(client, false)}
					if i >= 2*len(mix) {
						batch = append(batch, mix[(i+1)%len(mix)].request(client, false))
					}
					asked := make([]dispatch.Transaction, len(batch))
					for n, tx := range batch {
						asked[n] = *tx
					}
					results, err := f.Accept(t.Context(), batch)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					for n, r := range results {
						if r.Err != nil {
							if name != "all" || !errors.Is(r.Err, dispatch.ErrReused) {
								t.Error(client, asked[n].ClientID, asked[n].IdempotencyKey, r.Err)
							}
							continue
						}
						asked[n].ID = r.Transaction.ID
						bound = append(bound, asked[n])
					}
				})
			}
			wg.Wait()
			found := map[string]uuid.UUID{}
			for _, b := range bound {
				for _, name := range []string{"id " + b.ClientID, "key " + b.IdempotencyKey} {
					if earlier, ok := found[name]; ok && !strings.HasSuffix(name, " ") {
						require.Equal(t, earlier, b.ID, "%s: %s", client, name)
					}
					found[name] = b.ID
				}
			}
			if name != "all" {
				require.Equal(t, f.accept(names{id: "T"}.request(client, false)).ID, f.accept(names{key: "K"}.request(client, false)).ID)
				require.Equal(t, 1, f.count(`SELECT count(*) FROM relay_transactions WHERE client = $1`, client))
			}
		}
	}
}

// A transaction has one id and one key of its client. A request with another one is rejected, and binds nothing.
func TestAccept_OtherNameOfTheSameKind_IsRejected(t *testing.T) {
	f := setup(t)
	first := f.accept(names{"T", "K"}.request("shop", false))
	other := f.accept(names{"T2", "K2"}.request("shop", false))
	for _, n := range []names{{"T", "K3"}, {"T3", "K"}, {"T", "K2"}, {"T2", "K"}} {
		results, err := f.Accept(t.Context(), []*dispatch.Transaction{n.request("shop", false)})
		require.NoError(t, err)
		require.ErrorIs(t, results[0].Err, dispatch.ErrReused, "%v", n)
		_, err = f.Repeated(t.Context(), n.request("shop", false))
		require.ErrorIs(t, err, dispatch.ErrReused, "%v", n)
	}
	for _, n := range []names{{id: "T3"}, {key: "K3"}} {
		_, err := f.Repeated(t.Context(), n.request("shop", false))
		require.ErrorIs(t, err, dispatch.ErrNotFound)
	}
	require.NotEqual(t, first.ID, other.ID)

	keyed := f.accept(names{key: "K4"}.request("shop", false))
	repeated, err := f.Repeated(t.Context(), names{"T4", "K4"}.request("shop", false))
	require.NoError(t, err)
	require.Equal(t, keyed.ID, repeated.ID)
	require.Equal(t, keyed.ID, f.accept(names{id: "T4"}.request("shop", false)).ID, "it answers a 202, too")
}

// Requests with one key, at once and in one batch, are one transaction.
func TestAccept_Concurrent_IsOneTransaction(t *testing.T) {
	f := setup(t)
	var wg sync.WaitGroup
	ids := make([]uuid.UUID, 40)
	for i := range 20 {
		wg.Go(func() {
			one, two := transaction("shop"), transaction("shop")
			one.ClientID, two.ClientID = "order-1", "order-1"
			results, err := f.Accept(t.Context(), []*dispatch.Transaction{one, two})
			if err != nil || results[0].Err != nil || results[1].Err != nil {
				t.Error(err, results)
				return
			}
			ids[2*i], ids[2*i+1] = results[0].Transaction.ID, results[1].Transaction.ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		require.Equal(t, ids[0], id)
	}
	require.Equal(t, 1, f.count(`SELECT count(*) FROM relay_transactions`))
}

// A signer's nonce belongs to one request until that is final.
func TestAccept_Gasless_NonceBelongsToOneRequest(t *testing.T) {
	f := setup(t)
	gasless := func(value int64) *dispatch.Transaction {
		tx := transaction("shop")
		tx.Kind, tx.Value = dispatch.Gasless, big.NewInt(value)
		tx.Forward = &dispatch.Forward{Signer: common.Address{7}, Nonce: big.NewInt(3), Deadline: 1<<48 - 1}
		return tx
	}
	first := gasless(1)
	first.ClientID = "order-1"
	f.accept(first)
	again := gasless(1) // the contract's highest deadline, "never", is stored as it is
	again.ClientID = "order-1"
	require.Equal(t, first.ID, f.accept(again).ID)
	results, err := f.Accept(t.Context(), []*dispatch.Transaction{gasless(2)})
	require.NoError(t, err)
	require.ErrorIs(t, results[0].Err, dispatch.ErrNonceTaken)
	_, holder := f.begin(first.ID, route, time.Minute)
	ok, err := f.Fail(t.Context(), first.ID, holder, "rejected")
	require.NoError(t, err)
	require.True(t, ok)
	second := f.accept(gasless(2))
	require.Equal(t, gasless(2).Forward.Nonce, f.read(second.ID).Forward.Nonce)
}
