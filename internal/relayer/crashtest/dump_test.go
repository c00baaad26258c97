package crashtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/contracts"
)

// restoration is a scene in which Postgres is restored from a dump.
type restoration struct {
	before, after, later int // hits posted before the dump, after it, and after the restore
	// mined is the minimum number of hits posted after the dump that are mined before the restore.
	mined int
	// groups is the number of different calls.
	groups int
	// killed is how many relayers are killed before the restore, and started again after it. The others keep running.
	killed int
	// jump makes nodes count so many more transactions than the dump that keys stop, and an operator has to resync
	// them.
	jump bool
	// lag is how many blocks the first node is behind after the restore.
	lag uint64
}

// identical makes the calls of a load identical in groups: those of a group hit the same id.
func identical(t testing.TB, l *load, counter common.Address, groups int) *load {
	t.Helper()
	for i, h := range l.hits {
		var err error
		h.body, err = json.Marshal(map[string]any{
			"to": counter, "value": 0, "data": hexutil.Bytes(contracts.Hit(common.Hash{0xd, byte(i % groups)})), "speed": "fast", "gas_limit": contracts.HitGas,
		})
		require.NoError(t, err)
		h.hasty = false
	}
	return l
}

// dumped is the state of a transaction in the dump.
type dumped struct {
	queued bool // it had no nonce
	open   bool
}

// dumpedTransactions returns the transactions of a database, by id.
func dumpedTransactions(t testing.TB, db *pgxpool.Pool) map[string]dumped {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT id::text, nonce IS NULL, open FROM relayer_txs WHERE kind = 'transaction'`)
	require.NoError(t, err)
	all := map[string]dumped{}
	var id string
	var d dumped
	_, err = pgx.ForEachRow(rows, []any{&id, &d.queued, &d.open}, func() error { all[id] = d; return nil })
	require.NoError(t, err)
	return all
}

// signedHashes returns the hashes of all attempts in a database, with the transactions that they were signed for.
func signedHashes(t testing.TB, db *pgxpool.Pool) map[common.Hash]string {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT tx_hash, tx_id::text FROM relayer_attempts`)
	require.NoError(t, err)
	all := map[common.Hash]string{}
	var hash, id string
	_, err = pgx.ForEachRow(rows, []any{&hash, &id}, func() error { all[common.HexToHash(hash)] = id; return nil })
	require.NoError(t, err)
	return all
}

// execution is a call of the counter that the chain has executed.
type execution struct {
	id    common.Hash // the id of the hit
	block uint64
	time  time.Time
}

// executions returns all calls of the counter, by the hashes of their transactions.
func (v *truth) executions() map[common.Hash]execution {
	v.t.Helper()
	logs, err := v.chain.FilterLogs(v.t.Context(), ethereum.FilterQuery{FromBlock: new(big.Int), Addresses: []common.Address{v.counter}})
	require.NoError(v.t, err)
	all, times := map[common.Hash]execution{}, map[uint64]time.Time{}
	for i := range logs {
		hit, ok := contracts.ParseHit(&logs[i])
		require.True(v.t, ok)
		number := logs[i].BlockNumber
		if _, known := times[number]; !known {
			header, err := v.chain.HeaderByNumber(v.t.Context(), new(big.Int).SetUint64(number))
			require.NoError(v.t, err)
			times[number] = time.Unix(int64(header.Time), 0)
		}
		all[logs[i].TxHash] = execution{id: hit.ID, block: number, time: times[number]}
	}
	total, err := contracts.Total(v.t.Context(), v.chain, v.counter, nil)
	require.NoError(v.t, err)
	require.Len(v.t, all, int(total))
	return all
}

// restored is the data by which the claim about a restored dump is checked.
type restored struct {
	dump   map[string]dumped      // transactions of the dump
	signed map[common.Hash]string // attempts of the replaced database
	head   uint64                 // newest block at the restore, before anything was posted after it
}

// stored is a transaction in the store at the end.
type stored struct {
	ID, Status, Hash string
	CreatedAt        time.Time
	Data             []byte
}

// contradictions returns contradictions within the store, on the chain, or between both. It also returns how many
// executions the store does not have, or has under another hash, as README's table of failures describes.
func (r *restored) contradictions(rows []stored, executed map[common.Hash]execution) (wrong []string, again, unknown int) {
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	by := map[common.Hash]string{}
	for _, row := range rows {
		hash := common.HexToHash(row.Hash)
		e, is := executed[hash]
		d, old := r.dump[row.ID]
		switch {
		case row.Status != "confirmed":
			complain("%s is %s", row.ID, row.Status)
		case !is:
			complain("%s is confirmed with %s, which is not executed", row.ID, hash)
		case string(contracts.Hit(e.id)) != string(row.Data):
			complain("%s is confirmed with %s, which is another call", row.ID, hash)
		case by[hash] != "":
			complain("%s and %s are confirmed with %s", row.ID, by[hash], hash)
		case r.signed[hash] != "" && r.signed[hash] != row.ID:
			complain("%s is confirmed with %s, which was signed for %s (in the dump: %t, %+v)", row.ID, hash, r.signed[hash], old, d)
		case e.time.Before(row.CreatedAt.Truncate(time.Second)), !old && e.block <= r.head:
			complain("%s was accepted at %v, and is confirmed with %s, which was mined before, in block %d at %v; the restore was at block %d",
				row.ID, row.CreatedAt, hash, e.block, e.time, r.head)
		}
		by[hash] = row.ID
	}
	for hash, e := range executed {
		if by[hash] != "" {
			continue
		}
		id, known := r.signed[hash]
		d, old := r.dump[id]
		switch {
		case !known:
			complain("%s was executed in block %d, and no row has it", hash, e.block)
		case !old:
			unknown++
		case d.queued:
			again++
		default:
			complain("%s was executed in block %d beside another one of %s, which had a nonce in the dump", hash, e.block, id)
		}
	}
	slices.Sort(wrong)
	return wrong, again, unknown
}

// transactions returns the callers' transactions in the store.
func (v *truth) transactions() []stored {
	v.t.Helper()
	rows, err := v.db.Query(v.t.Context(), `SELECT id::text, status, coalesce(tx_hash, ''), created_at, data FROM relayer_txs WHERE kind = 'transaction'`)
	require.NoError(v.t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[stored])
	require.NoError(v.t, err)
	return all
}

// restoreUnderLoad restores a dump that was made during a load, and checks README's guarantees for it:
//
//   - A transaction that was accepted before the dump is in the store, and is executed. It is executed once, unless it
//     waited for a key in the dump: then it may be executed twice, by an attempt from before the restore and another one.
//   - One that was accepted between dump and restore is unknown to the store. It is executed once or not at all.
//   - One that is accepted after the restore is executed once.
//   - No transaction of the store is reported as final with a hash that was mined before it was accepted, or was signed for another one.
//   - No nonce is assigned that was used between dump and restore.
//
// Calls are identical in groups, so that each may be mistaken for another one.
func (sc *scene) restoreUnderLoad(r restoration) {
	t := sc.t
	t.Helper()
	v := sc.truth()
	post := func(n int) *load {
		l := identical(t, sc.load(n), sc.counter, r.groups)
		l.clients, l.pace = 8, 5*time.Millisecond
		l.run(t.Context(), sc.random)
		for _, h := range l.hits {
			require.NotEmpty(t, h.tx)
		}
		return l
	}
	count := func(query string, args ...any) (n int) {
		require.NoError(t, v.db.QueryRow(t.Context(), query, args...).Scan(&n))
		return n
	}

	first := post(2 * len(sc.keys))
	eventually(t, patience, func() bool { return count(`SELECT count(*) FROM relayer_txs WHERE NOT open`) > 0 }, "nothing is final")
	before := post(r.before / 3)
	// No block meanwhile, so that those beyond what the keys accept wait in the dump, however slow the machine is.
	sc.node.Pause()
	before.hits = append(before.hits, post(r.before-len(before.hits)).hits...)
	file := filepath.Join(t.TempDir(), "dump")
	sc.postgres.Dump(file)
	sc.node.Resume()
	dump := dumpedTransactions(t, sc.postgres.Restored(file).Pool(t))
	queued, pending := 0, 0
	for _, d := range dump {
		if d.queued {
			queued++
		} else if d.open {
			pending++
		}
	}
	require.NotZero(t, queued, "nothing waits in the dump")
	require.NotZero(t, pending, "nothing is pending in the dump")
	after := post(r.after)
	unknown := make([]string, len(after.hits))
	for i, h := range after.hits {
		unknown[i] = h.tx
	}
	eventually(t, 2*patience, func() bool {
		return count(`SELECT count(*) FROM relayer_txs WHERE block_number IS NOT NULL AND id = ANY($1::uuid[])`, unknown) >= r.mined
	}, "what was posted after the dump is not mined")

	for _, m := range sc.fleet[:r.killed] {
		m.kill()
	}
	replaced := sc.postgres.Replace(sc.postgres.Restored(file))
	sc.proxies[0].SetLag(r.lag)
	sc.proxies[0].Switch(true)
	is := &restored{dump: dump, signed: signedHashes(t, replaced.Pool(t)), head: sc.head()}
	restoredAt := time.Now()
	for _, m := range sc.fleet[:r.killed] {
		m.start()
	}
	eventually(t, patience, func() bool { return v.db.Ping(t.Context()) == nil }, "the restored database does not answer")
	if r.jump {
		sc.resyncJumped()
	}
	later := post(r.later)
	sc.proxies[0].SetLag(0)
	v.settled(2 * patience)
	rows, executed := v.transactions(), v.executions()
	wrong, again, foreign := is.contradictions(rows, executed)
	require.Empty(t, wrong)
	known := map[string]bool{}
	for _, row := range rows {
		known[row.ID] = true
	}
	for _, h := range slices.Concat(first.hits, before.hits, later.hits) {
		require.True(t, known[h.tx], "%s was accepted, and the store does not have it", h.tx)
	}
	require.Zero(t, count(`SELECT count(*) FROM relayer_txs WHERE kind = 'foreign' AND block_number <= $1`, int64(is.head)),
		"nonces were given out that were used since the dump")
	v.keys(true)
	v.records()
	v.delivered(patience)
	sc.reportsAfterRestore(is, rows, executed, restoredAt)
	sc.fleet.stop()
	t.Logf("dump: %d transactions, %d queued, %d pending; %d posted after it; %d in the end, executed %d times: %d of them again, %d unknown; %s; %s",
		len(dump), queued, pending, len(after.hits), len(rows), len(executed), again, foreign, v.extras(), sc.reports.summary())
}

// reportsAfterRestore compares statuses that clients received. A confirmation at any time has a hash that was executed.
// For transactions that were open in the dump or are new, reports after the restore agree with the end.
func (sc *scene) reportsAfterRestore(r *restored, rows []stored, executed map[common.Hash]execution, at time.Time) {
	t, v := sc.t, sc.truth()
	t.Helper()
	revisions := map[string]int{}
	found, err := v.db.Query(t.Context(), `SELECT id::text, revision FROM relayer_txs`)
	require.NoError(t, err)
	var id string
	var revision int
	_, err = pgx.ForEachRow(found, []any{&id, &revision}, func() error { revisions[id] = revision; return nil })
	require.NoError(t, err)
	ends := map[string]outcome{}
	for _, row := range rows {
		if d, old := r.dump[row.ID]; d.open || !old {
			ends[row.ID] = outcome{status: "confirmed", hash: row.Hash, revision: revisions[row.ID], executions: 1, mined: true}
		}
	}
	since := newReportLog()
	sc.reports.mu.Lock()
	defer sc.reports.mu.Unlock()
	for _, tx := range slices.Sorted(maps.Keys(sc.reports.all)) {
		for _, report := range sc.reports.all[tx] {
			if report.status == "confirmed" {
				_, is := executed[common.HexToHash(report.hash)]
				require.True(t, is, "%s: %v, and it was not executed", tx, report)
			}
			if _, is := ends[tx]; is && report.received.After(at) {
				since.all[tx] = append(since.all[tx], report)
			}
		}
	}
	require.Empty(t, since.contradictions(ends, time.Time{}))
}

// resyncJumped waits until keys are stopped, and resyncs them like an operator.
func (sc *scene) resyncJumped() {
	sc.t.Helper()
	sc.refuse(relayer.NonceJump)
	var found []struct{ NextNonceWas, NextNonce uint64 }
	sc.output(sc.resync(sc.t.Context(), "--all", "--yes"), &found)
	require.Len(sc.t, found, len(sc.keys))
	for _, key := range found {
		require.Greater(sc.t, key.NextNonce, key.NextNonceWas)
	}
}

// A restored dump loses later accepted transactions, and repeats those that waited in it. It mistakes no transaction
// for another one. Even a relayer that ran all the time assigns no nonce that was used since the dump.
func TestRestoredDump_IdenticalCalls_NoneIsMistakenForAnother(t *testing.T) {
	t.Parallel()
	sc := open(t, setting{keys: 3, relayers: 2, inFlight: 4, confirmations: 2, geth: pool(1000)})
	sc.restoreUnderLoad(restoration{before: 36, after: 12, later: 24, mined: 4, groups: 2, killed: 1})
}
