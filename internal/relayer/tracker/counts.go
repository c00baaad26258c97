package tracker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

const (
	// agreeingRounds is how many rounds must report that a key has more transactions than were allocated.
	agreeingRounds = 3
	// countsTimeout is how long a round waits for the counts of all endpoints. An endpoint that takes longer counts as
	// unavailable.
	countsTimeout = 2 * time.Second
)

// ahead is a key's count above its next nonce, over successive rounds.
type ahead struct {
	rounds      int       // since it was last decided that endpoints disagree
	lowestCount uint64    // the lowest that any endpoint has reported in any of these rounds
	last        time.Time // the last of them
	warned      bool      // about the disagreement
}

// checkCounts compares the keys with the chain. If the round's endpoint counts more than was allocated, it queries all
// endpoints for the same block, and the round continues with the lowest count. One endpoint must not decide alone. If
// several rounds and all responding endpoints agree on a count, it advances the key's next nonce. If the jump is above the
// bound, it stops the key instead.
//
// It also queries all endpoints about a key with used nonces that stay unexplained. The count may be too high there,
// although it is not above the key's next nonce. Maintenance then uses the lowest count. The search for receipts uses the
// endpoint's own, because another endpoint's may be too low.
//
// For a key that was not compared since a process registered it, the endpoints' pending counts are compared too.
func (r *round) checkCounts(ctx context.Context) error {
	suspects := r.suspects()
	var addresses []common.Address
	for _, i := range suspects {
		addresses = append(addresses, r.keys[i].Address)
	}
	if len(suspects) == 0 {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, countsTimeout)
	defer cancel()
	reports := r.cfg.Chain.Counts(asking, r.head.Hash, addresses)
	var compared []common.Address
	for j, i := range suspects {
		done, err := r.checkCount(ctx, i, reportsOf(reports, j, !r.keys[i].Compared))
		if err != nil {
			return err
		}
		if done && !r.keys[i].Compared {
			compared = append(compared, r.keys[i].Address)
		}
	}
	if len(compared) == 0 {
		return nil
	}
	r.freed = true // transactions queued for these keys may be dispatched
	return r.cfg.Store.Compared(ctx, compared, r.keys[0].Generation, r.keys[0].ReadAt)
}

// suspects returns the indexes of the keys about which all endpoints are queried.
func (r *round) suspects() (suspects []int) {
	doubtful := map[common.Address]bool{}
	if r.head.Hash != r.last.Hash {
		for nonce, l := range r.unexplained {
			if l.used == nil && l.due() {
				doubtful[nonce.Key] = true
			}
		}
	}
	r.sure = make([]uint64, len(r.counts))
	for i, k := range r.keys {
		r.counts[i] = min(r.counts[i], store.MaxNonce)
		r.sure[i] = r.counts[i]
		if r.counts[i] > k.NextNonce || !k.Compared {
			suspects = append(suspects, i)
			continue
		}
		delete(r.ahead, k.Address)
		d, disputed := r.disputed[k.Address]
		if disputed {
			r.sure[i] = min(r.sure[i], d.mined)
		}
		if disputed && d.head != r.head.Hash || doubtful[k.Address] {
			suspects = append(suspects, i)
		}
	}
	return suspects
}

// report summarizes the counts of one key by the endpoints that responded.
type report struct {
	mined, minedHighest  uint64 // the lowest and the highest
	minedBy              string // the endpoint with the lowest
	endpoints            map[string]bool
	lowestCount, highest uint64 // mined or, if requested, pending
	answers, asked       int    // endpoints
}

func reportsOf(all []evm.Counts, key int, pending bool) (n report) {
	n.asked = len(all)
	for _, c := range all {
		if c.Err != nil {
			continue
		}
		mined := min(c.Mined[key], store.MaxNonce)
		count := mined
		if pending {
			count = max(mined, min(c.Pending[key], store.MaxNonce))
		}
		if n.answers++; n.answers == 1 {
			n.mined, n.lowestCount, n.endpoints = mined, count, map[string]bool{}
		}
		n.endpoints[c.Endpoint] = true
		if n.minedBy == "" || mined < n.mined {
			n.mined, n.minedBy = mined, c.Endpoint
		}
		n.minedHighest, n.lowestCount, n.highest = max(n.minedHighest, mined), min(n.lowestCount, count), max(n.highest, count)
	}
	return n
}

// checkCount decides on one key, and reports whether its nonces may be allocated.
func (r *round) checkCount(ctx context.Context, i int, n report) (done bool, err error) {
	k := r.keys[i]
	if n.answers == 0 {
		return false, nil // retry in the next round
	}
	n.highest = max(n.highest, r.counts[i])
	r.sure[i] = r.lowestOf(k.Address, r.counts[i], n)
	if !k.Compared || r.counts[i] > k.NextNonce {
		r.counts[i] = r.sure[i]
	}
	if n.highest <= k.NextNonce {
		delete(r.ahead, k.Address)
		return true, nil
	}
	a := r.ahead[k.Address]
	switch {
	case a == nil:
		a = &ahead{lowestCount: n.lowestCount}
		r.ahead[k.Address] = a
	case time.Since(a.last) < r.cfg.Tend: // too early to be an independent response
		return false, nil
	}
	a.rounds, a.lowestCount, a.last = a.rounds+1, min(a.lowestCount, n.lowestCount), time.Now()
	log := r.cfg.Log.With("key", k.Address, "next", k.NextNonce, "lowest", a.lowestCount, "highest", n.highest)
	switch {
	case a.rounds < agreeingRounds:
		return false, nil
	case a.lowestCount <= k.NextNonce:
		if !a.warned && n.lowestCount < n.highest {
			a.warned = true
			log.Warn("endpoints disagree about a key's transactions; the lowest count is used")
		}
		a.rounds, a.lowestCount = 0, store.MaxNonce // one response that is too low must not decide permanently
		return true, nil
	case a.lowestCount-k.NextNonce > r.cfg.MaxNonceJump && n.answers < min(2, n.asked):
		if !a.warned { // stopped for good by the word of one endpoint, a key would need an operator
			a.warned = true
			log.Warn("one endpoint alone counts many more transactions of a key than were given out; the key waits for another endpoint", "bound", r.cfg.MaxNonceJump)
		}
		return false, nil
	case a.lowestCount-k.NextNonce > r.cfg.MaxNonceJump:
		stopped, err := r.cfg.Store.StopJump(ctx, k.Address, k.Generation, a.lowestCount, r.cfg.MaxNonceJump)
		if stopped {
			log.Error("key stopped: nodes count many more transactions than were given out; find out who uses the key, then run `rollcall keys resync`",
				"bound", r.cfg.MaxNonceJump)
		}
		return false, err
	}
	raised, err := r.cfg.Store.AdvanceNonce(ctx, k.Address, k.Generation, a.lowestCount)
	if err != nil {
		return false, err
	}
	delete(r.ahead, k.Address)
	if raised {
		r.cfg.Metrics.raised.Inc()
		log.Warn("another sender uses the key; its next nonce was raised")
	}
	return true, nil
}

// dispute is the lowest count of a key's mined transactions that an endpoint reported.
type dispute struct {
	head     common.Hash // of the last report
	mined    uint64
	endpoint string
	reported time.Time
}

// lowestOf returns the lowest count of a key's mined transactions, and records whether the endpoints disagree. A dispute ends
// when all endpoints that respond agree, and the one with the lowest count is among them or has not responded for
// StuckAfter. Otherwise one false count of an endpoint that then goes away would stop bumps and resends for good.
func (r *round) lowestOf(key common.Address, count uint64, n report) uint64 {
	lowest, highest := min(count, n.mined), max(count, n.minedHighest)
	d, known := r.disputed[key]
	switch {
	case lowest < highest:
		d = dispute{mined: lowest, endpoint: n.minedBy, reported: time.Now()}
		if count < n.mined {
			d.endpoint = r.view.Endpoint()
		}
	case !known:
		return lowest
	case n.endpoints[d.endpoint], time.Since(d.reported) >= r.cfg.StuckAfter:
		delete(r.disputed, key)
		return lowest
	}
	if !known {
		r.cfg.Log.Warn("endpoints disagree about a key's mined transactions; maintenance uses the lowest count",
			"key", key, "lowest", lowest, "highest", highest, "endpoint", r.view.Endpoint())
	}
	d.head = r.head.Hash
	r.disputed[key] = d
	return min(lowest, d.mined)
}

// countOfMost returns the median of the endpoints' mined counts of a key at the round's block; of an even number the higher
// middle one. answered is false if no endpoint responds.
func (r *round) countOfMost(ctx context.Context, key common.Address) (mined uint64, answered bool) {
	ctx, cancel := context.WithTimeout(ctx, countsTimeout)
	defer cancel()
	var counts []uint64
	for _, c := range r.cfg.Chain.Counts(ctx, r.head.Hash, []common.Address{key}) {
		if c.Err == nil {
			counts = append(counts, min(c.Mined[0], store.MaxNonce))
		}
	}
	if len(counts) == 0 {
		return 0, false
	}
	slices.Sort(counts)
	return counts[len(counts)/2], true
}

// reconcile starts a comparison of the store's nonces with all nodes' after the database failed over or was restored. It
// does not wait, and starts it again in each round until it succeeds, because a node that is down may take long to fail.
// The store allocates no nonces until then. Nothing else depends on it: a row keeps its nonce, and a key's next nonce only
// increases.
func (r *round) reconcile(ctx context.Context) error {
	over, err := r.cfg.Store.FailedOver(ctx)
	if err != nil || !over {
		return err
	}
	r.tryGo(r.comparing, func() {
		if err := r.compare(ctx); err != nil && ctx.Err() == nil {
			r.cfg.Log.Warn("database failed over or was restored: nothing new is sent until all nodes have reported their nonces", "err", err)
		}
	})
	return nil
}

// errUnsteady means that nodes have reported a nonce only once so far. It is accepted when they report it again.
var errUnsteady = errors.New("nodes have to report the same nonces twice")

// compare advances keys to the highest nonce that any node reports, twice in a row. If that is more than the bound above
// the next nonce, it stops the key.
func (r *round) compare(ctx context.Context) error {
	everywhere := r.cfg.Everywhere
	if everywhere == nil {
		everywhere = r.view.PendingNonces
	}
	nonces, err := everywhere(ctx, r.addresses)
	if err != nil {
		return err
	}
	before := r.reported
	r.reported = map[common.Address]uint64{}
	steady := true
	for i, address := range r.addresses {
		was, known := before[address]
		nonces[i] = min(nonces[i], store.MaxNonce)
		r.reported[address] = nonces[i]
		steady = steady && known && max(was, nonces[i])-min(was, nonces[i]) <= r.cfg.MaxNonceJump
	}
	if !steady {
		return errUnsteady
	}
	pending := map[common.Address]uint64{}
	for i, k := range r.keys {
		next := max(nonces[i], before[k.Address])
		if next > k.NextNonce {
			r.cfg.Log.Error("database lost transactions that nodes have", "key", k.Address, "next", k.NextNonce, "nodes", next)
		}
		stopped, err := r.stopJump(ctx, k, next)
		if err != nil {
			return err
		}
		if !stopped {
			pending[k.Address] = next
		}
	}
	if err := r.cfg.Store.Reconcile(ctx, r.keys[0].Generation, pending); err != nil {
		return err
	}
	r.reported = nil
	r.cfg.Log.Warn("database failed over or was restored: nonces were compared with the nodes'", "keys", len(pending))
	return nil
}

// stopJump stops a key if the nodes' count is above the bound.
func (r *round) stopJump(ctx context.Context, k *relayer.Key, count uint64) (stopped bool, err error) {
	if count <= k.NextNonce+r.cfg.MaxNonceJump {
		return false, nil
	}
	if _, err := r.cfg.Store.StopJump(ctx, k.Address, k.Generation, count, r.cfg.MaxNonceJump); err != nil {
		return false, fmt.Errorf("after a failover: %w", err)
	}
	return true, nil
}
