package store

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// keyAllocation holds the locked key rows and the queued demand per target while a batch is allocated.
type keyAllocation struct {
	cap, queueLimit int
	keys            []*lockedKey // of this process, shuffled: of equal keys the first one is taken
	queuedByTarget  map[string]*queueDemand
	queued          int
	budgets         budgetTracker
	failedOver      bool
	identity        uuid.UUID // of the store of idempotency keys
	now             time.Time // by the database's clock, once the rows are locked: stored rows get that time
}

// queueDemand is the minimum cost and reserve of the transactions queued for one target (the pool or a key).
type queueDemand struct{ cost, reserve *big.Int } // each the minimum of any of them, wei

// addMin adds a transaction to the demand. A nil reserve counts as zero.
func (d *queueDemand) addMin(cost, reserve *big.Int) {
	if reserve == nil {
		reserve = new(big.Int)
	}
	if d.cost == nil || cost.Cmp(d.cost) < 0 {
		d.cost = cost
	}
	if d.reserve == nil || reserve.Cmp(d.reserve) < 0 {
		d.reserve = reserve
	}
}

// lockedKey is a key whose row is locked.
type lockedKey struct {
	address  common.Address
	text     string // the address as it is stored
	next     uint64
	pending  int
	taken    int
	enabled  bool
	paused   bool
	stuck    bool
	compared bool // with the chain, since this process registered
	disabled string
	funding  bool
	// balance is the key's balance, nil if it was not read lately. committed is the maximum cost of its pending
	// transactions. Wei.
	balance, committed *big.Int
	given              *big.Int // part of committed: since the row was locked
}

// assignNonce takes the next nonce of a key for a transaction with this value and reserve.
func (a *keyAllocation) assignNonce(k *lockedKey, value, reserve *big.Int) (nonce uint64) {
	nonce = k.next + uint64(k.taken)
	k.taken++
	cost := relayer.Cost(value, reserve)
	k.committed.Add(k.committed, cost)
	k.given.Add(k.given, cost)
	a.budgets.take(account{scopeKey, k.text}, reserve)
	return nonce
}

// covers reports whether the key's balance covers a cost, in addition to the pending transactions if all is set.
//
// It gives no guarantee: the balance is some seconds old, fees rise, and another sender may use the key. It is stricter
// than the chain, because transactions mined in these seconds count twice. Without a fresh balance it accepts everything.
func (k *lockedKey) covers(cost *big.Int, all bool) bool {
	if k.balance == nil {
		return true
	}
	if all {
		cost = new(big.Int).Add(cost, k.committed)
	}
	return k.balance.Cmp(cost) >= 0
}

func (k *lockedKey) load() int { return k.pending + k.taken }

// lock queues the statements that lock and read the keys. The keys' rows stay locked until the end of the database
// transaction.
func (a *keyAllocation) lock(b *pgx.Batch, s *Store, limits AllocationLimits) {
	a.cap, a.queueLimit = limits.Cap, limits.Queue
	b.Queue(`SELECT address, next_nonce, pending_count, enabled, disabled_reason, paused, stuck_since IS NOT NULL, funding,
			CASE WHEN balance_at > now() - $4::interval THEN balance_wei::text END, committed_wei::text, compared_at >= $5 FROM relayer_keys
		WHERE chain_id = $1 AND pool_id = $2 AND address = ANY($3) ORDER BY address FOR UPDATE`,
		s.ChainID, s.Pool, hexAddresses(limits.Held), BalanceAge, s.comparedSince()).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			k := &lockedKey{given: new(big.Int)}
			var balance, committed *string
			if err := rows.Scan(&k.text, &k.next, &k.pending, &k.enabled, &k.disabled, &k.paused, &k.stuck, &k.funding,
				&balance, &committed, &k.compared); err != nil {
				return err
			}
			k.address, k.balance, k.committed = common.HexToAddress(k.text), relayer.ParseDecimal(balance), relayer.ParseDecimal(committed)
			a.keys = append(a.keys, k)
		}
		rand.Shuffle(len(a.keys), func(i, j int) { a.keys[i], a.keys[j] = a.keys[j], a.keys[i] })
		return rows.Err()
	})
	b.Queue(`SELECT count(*) FILTER (WHERE `+otherHistory+`), clock_timestamp(), (array_agg(p.identity))[1] FROM relayer_pools p
		WHERE chain_id = $1 AND pool_id = $2`, s.ChainID, s.Pool).QueryRow(func(row pgx.Row) error {
		var n int
		var identity *uuid.UUID // null without a row
		err := row.Scan(&n, &a.now, &identity)
		a.failedOver = n > 0
		if identity != nil {
			a.identity = *identity
		}
		return err
	})
}

// expiredPassed is how many of a target's cheapest transactions are read to find one that has not expired. If all of these
// have expired, the target counts as an empty queue. The next transaction may then overtake the rest, until the tracker has
// canceled the expired ones.
const expiredPassed = 20

// readQueue queues the query for the number of queued transactions per target, and for the minimum of their costs and of
// their reserves. It reads a counter and the ends of two indexes per target, however many are queued. Expired transactions
// count towards the limit but not towards the minimum.
func (a *keyAllocation) readQueue(b *pgx.Batch, s *Store) {
	a.queuedByTarget = map[string]*queueDemand{}
	b.Queue(`SELECT q.target, q.waiting, `+minimum("t.value_wei + coalesce(t.reserve_wei, 0)")+`, `+minimum("coalesce(t.reserve_wei, 0)")+`
		FROM relayer_queues q WHERE q.chain_id = $1 AND q.pool_id = $2 AND q.waiting > 0`, s.ChainID, s.Pool).Query(func(rows pgx.Rows) error {
		var target string
		var n int
		var cost, reserve *string
		_, err := pgx.ForEachRow(rows, []any{&target, &n, &cost, &reserve}, func() error {
			a.queued += n
			if cost != nil && reserve != nil {
				a.queuedByTarget[target] = &queueDemand{relayer.ParseDecimal(cost), relayer.ParseDecimal(reserve)}
			}
			return nil
		})
		return err
	})
}

// minimum returns an SQL expression for the smallest amount of the unexpired transactions queued for the target of q. The
// amount must be indexed.
func minimum(amount string) string {
	return fmt.Sprintf(`(SELECT min(least.amount)::text FROM (SELECT %[1]s AS amount, t.valid_until FROM relayer_txs t
		WHERE t.chain_id = q.chain_id AND t.pool_id = q.pool_id AND t.target = q.target AND t.open AND t.nonce IS NULL
		ORDER BY %[1]s LIMIT %[2]d) AS least WHERE least.valid_until IS NULL OR least.valid_until > now())`, amount, expiredPassed)
}

// BalanceAge is how long a balance is used. Pending amounts are added continuously and subtracted only when the balance is
// read again. So without a reading, the sum must not block keys indefinitely.
const BalanceAge = time.Minute

// lockBudgets queues the statement that locks and reads the budgets of the keys and of other accounts.
func (a *keyAllocation) lockBudgets(b *pgx.Batch, s *Store, limits AllocationLimits, others ...account) {
	a.budgets.open(s.Budgets)
	for _, key := range limits.Held {
		others = append(others, account{scopeKey, hexAddress(key)})
	}
	a.budgets.lock(b, s, others)
}

// findKey returns the key for a transaction with this value and reserve, or nil if it is queued.
func (a *keyAllocation) findKey(target string, key common.Address, value, reserve *big.Int) (*lockedKey, error) {
	if a.failedOver {
		return nil, errFailedOver
	}
	cost := relayer.Cost(value, reserve)
	best, why := a.pickKey(key, cost, reserve)
	if why != nil {
		return nil, why
	}
	if best != nil && !a.mustQueue(target, key) {
		return best, nil
	}
	if a.queued >= a.queueLimit {
		return nil, &relayer.LimitError{Limit: "every key is full, and so is the queue", After: queueRetry}
	}
	a.queued++
	if a.queuedByTarget[target] == nil {
		a.queuedByTarget[target] = new(queueDemand)
	}
	a.queuedByTarget[target].addMin(cost, reserve)
	return nil, nil
}

// mustQueue reports whether a key could take a transaction that was queued earlier. A transaction that no key can pay for
// at present blocks no other: it may have to wait for ether, or for tomorrow's budget.
//
// The minimum cost and the minimum reserve may belong to two transactions. Then a new one is queued needlessly, until the
// next Dispatch.
func (a *keyAllocation) mustQueue(target string, key common.Address) bool {
	demand := a.queuedByTarget[target]
	if demand == nil {
		return false
	}
	best, _ := a.pickKey(key, demand.cost, demand.reserve)
	return best != nil
}

var errNoKey = fmt.Errorf("%w: no key of this relayer may be used", relayer.ErrUnavailable)

// pickKey returns the key with room that has the fewest pending. It returns nil if all are full, or have committed their
// balance to pending transactions, and an error if no key may take it.
func (a *keyAllocation) pickKey(key common.Address, cost, reserve *big.Int) (best *lockedKey, why error) {
	var able, poor, spent bool
	why = errNoKey
	var paused int
	var disabled bool
	for _, k := range a.keys {
		if k.funding || key != (common.Address{}) && k.address != key {
			continue
		}
		switch {
		case k.paused:
			if paused++; key != (common.Address{}) {
				return nil, relayer.ErrPaused
			}
			continue
		case !k.enabled:
			if key != (common.Address{}) {
				return nil, fmt.Errorf("%w: %s", relayer.ErrDisabled, k.disabled)
			}
			disabled = true
			continue
		}
		switch {
		case !k.covers(cost, false):
			poor = true
			continue
		case !a.budgets.fits(account{scopeKey, k.text}, reserve):
			spent = true
			continue
		}
		able = true
		if !k.stuck && k.compared && k.load() < a.cap && k.covers(cost, true) && (best == nil || k.load() < best.load()) {
			best = k
		}
	}
	switch {
	case able:
		return best, nil
	case poor: // also if other keys have spent their budgets: budgets are reset tomorrow
		return nil, &relayer.FundsError{Need: cost}
	case spent:
		return nil, a.budgets.refusal(scopeKey)
	case paused > 0 && !disabled: // the system may enable again the keys that it has disabled
		return nil, relayer.ErrPaused
	}
	return nil, why
}

// store queues the updates for the assigned nonces.
func (a *keyAllocation) store(b *pgx.Batch, s *Store) {
	a.budgets.store(b, s)
	var addresses, given []string
	var taken []int32
	for _, k := range a.keys {
		if k.taken > 0 {
			addresses, taken, given = append(addresses, k.text), append(taken, int32(k.taken)), append(given, k.given.String())
		}
	}
	if len(addresses) == 0 {
		return
	}
	b.Queue(`UPDATE relayer_keys k SET next_nonce = next_nonce + n, pending_count = pending_count + n, updated_at = now(),
			committed_wei = committed_wei + wei::numeric
		FROM unnest($2::text[], $3::int[], $4::text[]) AS t (address, n, wei) WHERE k.chain_id = $1 AND k.address = t.address`,
		s.ChainID, addresses, taken, given)
}
