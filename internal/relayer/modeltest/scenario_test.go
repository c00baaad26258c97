package modeltest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer"
	"github.com/rollcall-dev/rollcall/internal/relayer/signer/signertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// trial is one history.
type trial struct {
	t      *testing.T
	seed   uint64
	world  *world
	keys   []signertest.Key
	url    string
	db     *pgxpool.Pool
	log    *history
	faults *faults

	mu        sync.Mutex
	processes []*process
	requests  []*request
	contents  uint64
	foreign   map[common.Hash]bool
	followed  common.Hash // the head of the latest round of a tracker
	callers   sync.WaitGroup
	calls     int // of any kind
}

// request is a caller's request, and its known outcome.
type request struct {
	number  int
	key     string // idempotency key; "" for none
	target  string
	content uint64
	until   time.Time

	mu sync.Mutex
	id uuid.UUID // zero: no answer has reported its acceptance
	// maybe: it may have been accepted nevertheless.
	maybe    bool
	contents []uint64 // its own and those of replacements that may have been accepted
	canceled bool     // an answer has reported that
	answered bool     // with any result
}

// newTrial starts a history on its own chain, and so with its own store, because stores are separate for each chain.
func newTrial(t *testing.T, shelf *shelf, seed uint64, plan func(step, int) kind) *trial {
	t.Helper()
	db, chainID := shelf.take(t)
	log := &history{began: time.Now()}
	tr := &trial{
		t: t, seed: seed, world: newWorld(chainID), keys: signertest.Keys(t, "modeltest", 2), url: db.url, db: db.pool, log: log,
		faults: &faults{log: log, count: map[step]int{}, plan: plan}, foreign: map[common.Hash]bool{},
	}
	_, err := store.New(tr.db, store.Config{ChainID: chainID, Pool: poolID}).InitChain(t.Context(), tr.world.genesis.Hash)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, p := range tr.processes {
			p.stop()
			<-p.done
		}
		if t.Failed() || *histories {
			t.Log("history:\n" + tr.log.String())
			t.Log(tr.world.String())
		}
	})
	return tr
}

// alive returns the processes that are neither dead nor stopped.
func (tr *trial) alive() (all []*process) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, p := range tr.processes {
		select {
		case <-p.done:
		default:
			if !p.isDead() {
				all = append(all, p)
			}
		}
	}
	return all
}

// registered waits until the keys are registered, so that later steps find them.
func (tr *trial) registered() {
	tr.t.Helper()
	require.Eventually(tr.t, func() bool {
		var n int
		return tr.db.QueryRow(tr.t.Context(), `SELECT count(*) FROM relayer_keys WHERE chain_id = $1`, tr.world.chainID).Scan(&n) == nil && n == len(tr.keys)
	}, slowMachine, 2*time.Millisecond)
}

// data returns the data by which a content is counted.
func data(content uint64) []byte { return binary.BigEndian.AppendUint64([]byte("call"), content) }

func (tr *trial) newContent() uint64 {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.contents++
	return tr.contents
}

func (r *request) asked(content uint64, until time.Time) relayer.Request {
	to := common.HexToAddress("0xcc")
	return relayer.Request{To: &to, Value: new(big.Int), Data: data(content), Speed: relayer.Fast, GasLimit: 50_000, ValidUntil: until}
}

func (tr *trial) newRequest(idempotent bool, target string, life time.Duration) *request {
	r := &request{target: target, content: tr.newContent()}
	r.contents = []uint64{r.content}
	if life != 0 {
		r.until = time.Now().Add(life).UTC().Truncate(time.Microsecond)
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	r.number = len(tr.requests) + 1
	if idempotent {
		r.key = fmt.Sprintf("key-%d", r.number)
	}
	tr.requests = append(tr.requests, r)
	return r
}

// call runs a caller concurrently.
func (tr *trial) call(do func(ctx context.Context)) {
	tr.callers.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		defer cancel()
		do(ctx)
	})
}

// submit posts a request, once.
func (tr *trial) submit(ctx context.Context, p *process, r *request) error {
	tx, err := p.Submit(ctx, relayer.Submission{
		RelayerID: r.target, Caller: "caller", IdempotencyKey: r.key, BodyHash: [32]byte(common.BigToHash(new(big.Int).SetUint64(r.content))),
		Request: r.asked(r.content, r.until),
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answered = true
	switch {
	case p.isDead():
		r.maybe = true // the answer, if any, was lost
		return errDead
	case err != nil:
		tr.log.add("%s: request %d: %v", p.name, r.number, err)
		r.maybe = r.maybe || errors.Is(err, relayer.ErrUnknown)
		return err
	case r.id != uuid.Nil && r.id != tx.ID:
		tr.t.Errorf("request %d got two transactions, %s and %s", r.number, r.id, tx.ID)
	}
	if r.id == uuid.Nil {
		tr.log.add("%s: request %d is %s", p.name, r.number, tx.ID)
	}
	r.id = tx.ID
	return nil
}

func (tr *trial) cancel(ctx context.Context, p *process, r *request) error {
	id := r.accepted()
	if id == uuid.Nil {
		return nil
	}
	_, err := p.Cancel(ctx, r.target, id, "caller")
	tr.log.add("%s: cancel request %d: %v", p.name, r.number, err)
	if err == nil && !p.isDead() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.canceled = true
	}
	return err
}

func (tr *trial) replace(ctx context.Context, p *process, r *request) error {
	id := r.accepted()
	if id == uuid.Nil {
		return nil
	}
	content := tr.newContent()
	r.mu.Lock()
	r.contents = append(r.contents, content)
	r.mu.Unlock()
	_, err := p.Replace(ctx, r.target, id, "caller", r.asked(content, r.until))
	tr.log.add("%s: replace request %d by content %d: %v", p.name, r.number, content, err)
	return err
}

// accepted returns the id of the transaction that the caller received; zero if none.
func (r *request) accepted() uuid.UUID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.id
}

// foreignSender sends with one of the keys.
func (tr *trial) foreignSender(key int) {
	k := tr.keys[key]
	hash := tr.world.foreign(func(tx *types.Transaction) []byte {
		signed, err := signer.SignRaw(context.Background(), k.Signer, tx, new(big.Int).SetUint64(tr.world.chainID))
		if err != nil {
			panic(err)
		}
		return signed.Raw
	}, k.Address)
	tr.foreign[hash] = true
	tr.log.add("world: a stranger uses %s", k.Address.Hex()[:8])
}

// settle waits for the end of all transactions, without further faults of processes. unrest is what the chain does
// before each of the first blocks.
func (tr *trial) settle(unrest func()) {
	tr.t.Helper()
	tr.faults.stop()
	tr.world.hold(false)
	tr.world.mu.Lock()
	tr.world.forgets = 0
	tr.world.mu.Unlock()
	tr.log.add("world: no more faults")
	fresh := tr.start()
	tr.callers.Go(func() {
		for _, r := range tr.requests {
			for r.key != "" && r.accepted() == uuid.Nil {
				ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
				err := tr.submit(ctx, fresh, r)
				cancel()
				if _, refused := errors.AsType[*relayer.InvalidError](err); refused || tr.t.Context().Err() != nil {
					break // it expired before a process accepted it
				}
			}
		}
		tr.log.add("world: every request is answered")
	})
	// Callers of a frozen process may have transactions accepted after everything else has ended.
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		tr.callers.Wait()
	}()
	limit := time.After(10 * slowMachine)
	sealed := 0
	for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
		select {
		case <-limit:
			tr.t.Error("not everything came to its end")
			tr.t.Log(tr.open())
			tick.Stop()
			return
		default:
		}
		if sealed++; sealed < 80 {
			unrest()
		}
		tr.world.seal(4)
		select {
		case <-answered:
			if slices.ContainsFunc(tr.alive(), (*process).isFrozen) {
				continue
			}
			for _, p := range tr.alive() { // a process that was frozen stores its pending changes then
				if p != fresh {
					p.stop()
					<-p.done
				}
			}
			if tr.world.waiting() == 0 && tr.open() == "" {
				tick.Stop()
				fresh.stop()
				<-fresh.done
				return
			}
		default:
		}
	}
}

// open describes the unfinished work: open rows in the store, and differences between it and the chain.
func (tr *trial) open() string {
	var mined []int64
	var addresses []string
	for i, k := range tr.keys {
		mined, addresses = append(mined, int64(tr.count(i))), append(addresses, lower(k.Address))
	}
	var what string
	err := tr.db.QueryRow(context.Background(), `SELECT concat_ws(E'\n',
		(SELECT string_agg(format('%s %s: %s %s %s', relayer_address, nonce, status, intent, id), E'\n') FROM relayer_txs
			WHERE open AND chain_id = $1),
		(SELECT string_agg(format('%s has %s pending; its next nonce is %s, and %s are mined', address, pending_count, next_nonce, n), E'\n')
			FROM relayer_keys JOIN unnest($2::text[], $3::bigint[]) AS m (a, n) ON address = a
			WHERE chain_id = $1 AND (pending_count <> 0 OR next_nonce <> n)))`, tr.world.chainID, addresses, mined).Scan(&what)
	if err != nil {
		return err.Error()
	}
	return what
}
