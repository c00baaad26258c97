package store

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// keyAllocation is the keys as they stand while their rows are locked, and who waits for one.
type keyAllocation struct {
	cap, queueLimit int
	keys            []*lockedKey // of this process's keys, at random: of equals the first one is taken
	queuedByTarget  map[string]*queueDemand
	queued          int
	budgets         budgetTracker
	failedOver      bool
	now             time.Time // by the database's clock, once the rows are locked: what is written down has that time
}

// queueDemand is those who wait for the same: the pool, or one key.
type queueDemand struct{ cost, reserve *big.Int } // the least of any of them, wei

// addMin puts somebody into the line; nil stands for nothing.
func (l *queueDemand) addMin(cost, reserve *big.Int) {
	if reserve == nil {
		reserve = new(big.Int)
	}
	if l.cost == nil || cost.Cmp(l.cost) < 0 {
		l.cost = cost
	}
	if l.reserve == nil || reserve.Cmp(l.reserve) < 0 {
		l.reserve = reserve
	}
}

// lockedKey is a locked key.
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
	// What it has, if that was read lately, and what the pending ones may cost of it; wei.
	balance, committed *big.Int
	given              *big.Int // of committed: since the row was locked
}

// assignNonce takes the next nonce of a seat that was found for a transaction.
func (h *keyAllocation) assignNonce(s *lockedKey, value, reserve *big.Int) (nonce uint64) {
	nonce = s.next + uint64(s.taken)
	s.taken++
	cost := relayer.Cost(value, reserve)
	s.committed.Add(s.committed, cost)
	s.given.Add(s.given, cost)
	h.budgets.take(account{scopeKey, s.text}, reserve)
	return nonce
}

// covers reports whether its balance covers a cost, beside what is pending if all is set.
//
// It is a help, not a guarantee: the balance is some seconds old, fees rise, and others may use the key. It is stricter than
// the chain, since what was mined in these seconds counts twice. Without a fresh balance it lets everything pass.
func (s *lockedKey) covers(cost *big.Int, all bool) bool {
	if s.balance == nil {
		return true
	}
	if all {
		cost = new(big.Int).Add(cost, s.committed)
	}
	return s.balance.Cmp(cost) >= 0
}

func (s *lockedKey) load() int { return s.pending + s.taken }

// lock queues what reads the hall. The rows of the keys stay locked to the end of the transaction.
func (h *keyAllocation) lock(b *pgx.Batch, l *Store, terms AllocationLimits) {
	h.cap, h.queueLimit = terms.Cap, terms.Queue
	b.Queue(`SELECT address, next_nonce, pending_count, enabled, disabled_reason, paused, stuck_since IS NOT NULL, funding,
			CASE WHEN balance_at > now() - $4::interval THEN balance_wei::text END, committed_wei::text, compared_at >= $5 FROM relayer_keys
		WHERE chain_id = $1 AND pool_id = $2 AND address = ANY($3) ORDER BY address FOR UPDATE`,
		l.ChainID, l.Pool, hexAddresses(terms.Held), balanceAge, l.comparedSince()).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			s := &lockedKey{given: new(big.Int)}
			var balance, committed *string
			if err := rows.Scan(&s.text, &s.next, &s.pending, &s.enabled, &s.disabled, &s.paused, &s.stuck, &s.funding,
				&balance, &committed, &s.compared); err != nil {
				return err
			}
			s.address, s.balance, s.committed = common.HexToAddress(s.text), parseDecimal(balance), parseDecimal(committed)
			h.keys = append(h.keys, s)
		}
		rand.Shuffle(len(h.keys), func(i, j int) { h.keys[i], h.keys[j] = h.keys[j], h.keys[i] })
		return rows.Err()
	})
	b.Queue(`SELECT count(*), clock_timestamp() FROM relayer_pools p WHERE chain_id = $1 AND pool_id = $2 AND `+otherHistory, l.ChainID, l.Pool).QueryRow(func(row pgx.Row) error {
		var n int
		err := row.Scan(&n, &h.now)
		h.failedOver = n > 0
		return err
	})
}

// expiredPassed is how many of a target's cheapest transactions are looked at to find one that has not expired. Where all of
// these have, the target counts as one that nothing waits for: the next transaction may overtake the rest, until the tracker
// has taken the expired ones back.
const expiredPassed = 20

// readQueue queues what reads how many transactions wait for each target, and the minimum of their costs and of their
// reserves. It reads a counter and two ends of indexes a target, however many wait. Expired transactions count towards the
// limit and not towards the minimum.
func (h *keyAllocation) readQueue(b *pgx.Batch, l *Store) {
	h.queuedByTarget = map[string]*queueDemand{}
	b.Queue(`SELECT q.target, q.waiting, `+minimum("t.value_wei + coalesce(t.reserve_wei, 0)")+`, `+minimum("coalesce(t.reserve_wei, 0)")+`
		FROM relayer_queues q WHERE q.chain_id = $1 AND q.pool_id = $2 AND q.waiting > 0`, l.ChainID, l.Pool).Query(func(rows pgx.Rows) error {
		var target string
		var n int
		var cost, reserve *string
		_, err := pgx.ForEachRow(rows, []any{&target, &n, &cost, &reserve}, func() error {
			h.queued += n
			if cost != nil && reserve != nil {
				h.queuedByTarget[target] = &queueDemand{parseDecimal(cost), parseDecimal(reserve)}
			}
			return nil
		})
		return err
	})
}

// minimum is an expression that reads the smallest amount of those that wait for the target of q and have not expired. The
// amount is one that has an index.
func minimum(amount string) string {
	return fmt.Sprintf(`(SELECT min(least.amount)::text FROM (SELECT %[1]s AS amount, t.valid_until FROM relayer_txs t
		WHERE t.chain_id = q.chain_id AND t.pool_id = q.pool_id AND t.target = q.target AND t.open AND t.nonce IS NULL
		ORDER BY %[1]s LIMIT %[2]d) AS least WHERE least.valid_until IS NULL OR least.valid_until > now())`, amount, expiredPassed)
}

// balanceAge is how long a balance is used. Pending amounts are added all the while and taken off only when the balance
// is read again: without a reading, the sum must not block keys for ever.
const balanceAge = time.Minute

// lockBudgets queues what reads the budgets of the keys, and of other accounts.
func (h *keyAllocation) lockBudgets(b *pgx.Batch, l *Store, terms AllocationLimits, others ...account) {
	h.budgets.open(l.Budgets)
	for _, key := range terms.Held {
		others = append(others, account{scopeKey, hexAddress(key)})
	}
	h.budgets.lock(b, l, others)
}

// findKey finds the place of what has a value and may cost reserve: a key, or, nil, the queue.
func (h *keyAllocation) findKey(target string, key common.Address, value, reserve *big.Int) (*lockedKey, error) {
	if h.failedOver {
		return nil, errFailedOver
	}
	cost := relayer.Cost(value, reserve)
	best, why := h.pickKey(key, cost, reserve)
	if why != nil {
		return nil, why
	}
	if best != nil && !h.mustQueue(target, key) {
		return best, nil
	}
	if h.queued >= h.queueLimit {
		return nil, &relayer.LimitError{Limit: "every key is full, and so is the queue", After: queueRetry}
	}
	h.queued++
	if h.queuedByTarget[target] == nil {
		h.queuedByTarget[target] = new(queueDemand)
	}
	h.queuedByTarget[target].addMin(cost, reserve)
	return nil, nil
}

// mustQueue reports whether a key could be had for something that has waited before. A transaction that no key can pay for
// at present blocks no other: it may have to wait for ether, or for tomorrow's budget.
//
// The least cost and the least reserve may be those of two. Then what comes waits without need, until the next Dispatch.
func (h *keyAllocation) mustQueue(target string, key common.Address) bool {
	l := h.queuedByTarget[target]
	if l == nil {
		return false
	}
	best, _ := h.pickKey(key, l.cost, l.reserve)
	return best != nil
}

var errNoKey = fmt.Errorf("%w: no key of this relayer may be used", relayer.ErrUnavailable)

// pickKey is the key with room that has the fewest pending; nil when all are full, or have promised what they own to what is
// pending; an error when none may take it.
func (h *keyAllocation) pickKey(key common.Address, cost, reserve *big.Int) (best *lockedKey, why error) {
	var able, poor, spent bool
	why = errNoKey
	var paused int
	var disabled bool
	for _, s := range h.keys {
		if s.funding || key != (common.Address{}) && s.address != key {
			continue
		}
		switch {
		case s.paused:
			if paused++; key != (common.Address{}) {
				return nil, relayer.ErrPaused
			}
			continue
		case !s.enabled:
			if key != (common.Address{}) {
				return nil, fmt.Errorf("%w: %s", relayer.ErrDisabled, s.disabled)
			}
			disabled = true
			continue
		}
		switch {
		case !s.covers(cost, false):
			poor = true
			continue
		case !h.budgets.fits(account{scopeKey, s.text}, reserve):
			spent = true
			continue
		}
		able = true
		if !s.stuck && s.compared && s.load() < h.cap && s.covers(cost, true) && (best == nil || s.load() < best.load()) {
			best = s
		}
	}
	switch {
	case able:
		return best, nil
	case poor: // also where others have spent their budgets: those are there again tomorrow
		return nil, &relayer.FundsError{Need: cost}
	case spent:
		return nil, h.budgets.refusal(scopeKey)
	case paused > 0 && !disabled: // what the system has disabled it may enable again
		return nil, relayer.ErrPaused
	}
	return nil, why
}

// store queues what the taken nonces have changed.
func (h *keyAllocation) store(b *pgx.Batch, l *Store) {
	h.budgets.store(b, l)
	var addresses, given []string
	var taken []int32
	for _, s := range h.keys {
		if s.taken > 0 {
			addresses, taken, given = append(addresses, s.text), append(taken, int32(s.taken)), append(given, s.given.String())
		}
	}
	if len(addresses) == 0 {
		return
	}
	b.Queue(`UPDATE relayer_keys k SET next_nonce = next_nonce + n, pending_count = pending_count + n, updated_at = now(),
			committed_wei = committed_wei + wei::numeric
		FROM unnest($2::text[], $3::int[], $4::text[]) AS t (address, n, wei) WHERE k.chain_id = $1 AND k.address = t.address`,
		l.ChainID, addresses, taken, given)
}
