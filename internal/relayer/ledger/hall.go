package ledger

import (
	"fmt"
	"math/rand/v2"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// hall is the keys as they stand while their rows are locked, and who waits for one.
type hall struct {
	cap, queueLimit int
	seats           []*seat // of this process's keys, at random: of equals the first one is taken
	waiting         map[string]int
	queued          int
}

// seat is a locked key.
type seat struct {
	address  common.Address
	next     uint64
	pending  int
	taken    int
	enabled  bool
	paused   bool
	stuck    bool
	disabled string
}

func (s *seat) take() (nonce uint64) {
	nonce = s.next + uint64(s.taken)
	s.taken++
	return nonce
}

func (s *seat) load() int { return s.pending + s.taken }

// lock queues what reads the hall. The rows of the keys stay locked to the end of the transaction.
func (h *hall) lock(b *pgx.Batch, l *Ledger, terms Terms) {
	h.cap, h.queueLimit = terms.Cap, terms.Queue
	h.waiting = map[string]int{}
	b.Queue(`SELECT address, next_nonce, pending_count, enabled, disabled_reason, paused, stuck_since IS NOT NULL FROM relayer_keys
		WHERE chain_id = $1 AND pool_id = $2 AND address = ANY($3) ORDER BY address FOR UPDATE`,
		l.ChainID, l.Pool, hexAddresses(terms.Held)).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			s := new(seat)
			var address string
			if err := rows.Scan(&address, &s.next, &s.pending, &s.enabled, &s.disabled, &s.paused, &s.stuck); err != nil {
				return err
			}
			s.address = common.HexToAddress(address)
			h.seats = append(h.seats, s)
		}
		rand.Shuffle(len(h.seats), func(i, j int) { h.seats[i], h.seats[j] = h.seats[j], h.seats[i] })
		return rows.Err()
	})
	b.Queue(`SELECT target, count(*) FROM relayer_txs WHERE chain_id = $1 AND pool_id = $2 AND open AND nonce IS NULL GROUP BY target`,
		l.ChainID, l.Pool).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var target string
			var n int
			if err := rows.Scan(&target, &n); err != nil {
				return err
			}
			h.waiting[target] = n
			h.queued += n
		}
		return rows.Err()
	})
}

// seat finds the place of a draft: a key, or, nil, the queue.
func (h *hall) seat(target string, key common.Address) (*seat, error) {
	best, why := h.best(key)
	if why != nil {
		return nil, why
	}
	if best != nil && h.waiting[target] == 0 {
		return best, nil
	}
	if h.queued >= h.queueLimit {
		return nil, &relayer.LimitError{Limit: "every key is full, and so is the queue", After: queueRetry}
	}
	h.queued++
	h.waiting[target]++
	return nil, nil
}

// best is the key with room that has the fewest pending; nil when all are full, an error when none may take anything.
func (h *hall) best(key common.Address) (best *seat, why error) {
	why = fmt.Errorf("%w: no key of this relayer may be used", relayer.ErrUnavailable)
	for _, s := range h.seats {
		if key != (common.Address{}) && s.address != key {
			continue
		}
		switch {
		case s.paused:
			if key != (common.Address{}) {
				return nil, relayer.ErrPaused
			}
			continue
		case !s.enabled:
			if key != (common.Address{}) {
				return nil, fmt.Errorf("%w: %s", relayer.ErrDisabled, s.disabled)
			}
			continue
		}
		why = nil
		if !s.stuck && s.load() < h.cap && (best == nil || s.load() < best.load()) {
			best = s
		}
	}
	return best, why
}

// store queues what the taken nonces have changed.
func (h *hall) store(b *pgx.Batch, l *Ledger) {
	var addresses []string
	var taken []int32
	for _, s := range h.seats {
		if s.taken > 0 {
			addresses, taken = append(addresses, hexAddress(s.address)), append(taken, int32(s.taken))
		}
	}
	if len(addresses) == 0 {
		return
	}
	b.Queue(`UPDATE relayer_keys k SET next_nonce = next_nonce + n, pending_count = pending_count + n, updated_at = now()
		FROM unnest($2::text[], $3::int[]) AS t (address, n) WHERE k.chain_id = $1 AND k.address = t.address`,
		l.ChainID, addresses, taken)
}
