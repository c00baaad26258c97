package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
)

// Resync is the result of comparing and correcting one key.
type Resync struct {
	Key                   common.Address
	PendingWas, PendingIs int
	NextWas, NextIs       uint64
	Mined                 uint64   // the chain's count
	Filled                []uint64 // nonces without a transaction; relayers sign no-ops for them
	// Sought is the number of transactions whose nonce the chain has used and that are not recorded as mined. Relayers look
	// for them.
	Sought int
	// Enabled reports that the key was stopped for a nonce jump, and no longer is.
	Enabled bool
}

// soughtLimit bounds how many transactions are counted.
const soughtLimit = 10_000

// fillable is how many nonces without a transaction a resync fills. Each costs a no-op's fee.
const fillable = 1000

// KeyCount is the nodes' counts of a key's transactions.
type KeyCount struct {
	Key     *relayer.Key
	Mined   uint64
	Pending uint64 // mined or, without a gap, in a node's pool: the highest median of a node's reports, of at least two
	Highest uint64 // of all reports of all nodes
}

// next returns the lowest nonce that no node knows a transaction of.
func (c KeyCount) next() uint64 { return max(c.Mined, c.Pending) }

// Jump returns by how many nonces a key's next nonce would be raised, if that is more than most, by which relayers raise it by
// themselves; else 0. An operator confirms a jump, because each skipped nonce may cost a no-op.
func Jump(k *relayer.Key, next, most uint64) uint64 {
	if next <= k.NextNonce || next-k.NextNonce <= most {
		return 0
	}
	return next - k.NextNonce
}

// Jumps returns the counts with which [Admin.Resync] would make a [Jump]. If no other sender used those keys, a node counts too
// many.
func Jumps(counts []KeyCount, most uint64) []KeyCount {
	var jumps []KeyCount
	for _, c := range counts {
		if Jump(c.Key, c.next(), most) > 0 {
			jumps = append(jumps, c)
		}
	}
	return jumps
}

const (
	// readings is how many times the nodes are asked for their counts, one of which may be false.
	readings = 3
	// readingInterval is the time between two readings.
	readingInterval = 300 * time.Millisecond
	// maxCounts is how many times a count that raises a next nonce is read, until it is the same twice.
	maxCounts = 5
	// countsTimeout is how long the nodes have for one reading.
	countsTimeout = 2 * time.Second
)

// Count asks all nodes three times for their counts of keys. Of each node it takes the median, of two counts the lower, and
// of all nodes the highest. It leaves out nodes that do not respond within two seconds. If it would raise a key's next
// nonce, it asks again until the count stays the same, because transactions that the store does not have may still be
// arriving at the nodes. It rejects counts that go on changing, a chain with another history than the recorded one, where
// counts are meaningless, and nodes that count differently at one block.
func (a *Admin) Count(ctx context.Context, client *evm.Client, keys []*relayer.Key) ([]KeyCount, error) {
	if err := tracker.NewChainIdentity(tracker.Nodes(client), a.Store, slog.New(slog.DiscardHandler), client).Check(ctx); err != nil {
		return nil, refused{err}
	}
	var before []KeyCount
	var changing *KeyCount
	for n := range maxCounts {
		if n > 0 {
			if err := pause(ctx, readingInterval); err != nil {
				return nil, refused{err}
			}
		}
		now, err := a.countOnce(ctx, client, keys)
		if err != nil {
			return nil, err
		}
		changing = nil
		for i := range now {
			c := &now[i]
			if c.next() > c.Key.NextNonce && (before == nil || before[i].next() != c.next()) {
				changing = c
			}
			if before != nil { // a transaction that a node had once may come back
				c.Highest = max(c.Highest, before[i].Highest)
			}
		}
		if changing == nil {
			return now, nil
		}
		before = now
	}
	return nil, refused{fmt.Errorf("the nodes' count of %s still changes, and is %d now: stop all else that sends with the key, and repeat",
		changing.Key.Address, changing.next())}
}

// countOnce is Count without the repetition.
func (a *Admin) countOnce(ctx context.Context, client *evm.Client, keys []*relayer.Key) ([]KeyCount, error) {
	addresses := make([]common.Address, len(keys))
	for i, k := range keys {
		addresses[i] = k.Address
	}
	all := map[string][]evm.Counts{}
	for n := range readings {
		if n > 0 {
			if err := pause(ctx, readingInterval); err != nil {
				return nil, refused{err}
			}
		}
		reports, err := readCounts(ctx, client, addresses)
		if err != nil {
			return nil, refused{err}
		}
		for _, r := range reports {
			all[r.Endpoint] = append(all[r.Endpoint], r)
		}
	}
	keys, err := a.Keys(ctx, addresses...) // relayers have allocated nonces meanwhile
	if err != nil {
		return nil, err
	}
	counts := make([]KeyCount, len(keys))
	for i, k := range keys {
		counts[i].Key = k
		for _, reports := range all {
			mined, pending := make([]uint64, len(reports)), make([]uint64, len(reports))
			for j, r := range reports {
				mined[j], pending[j] = r.Mined[i], r.Pending[i]
				counts[i].Highest = max(counts[i].Highest, r.Mined[i], r.Pending[i])
			}
			counts[i].Mined = max(counts[i].Mined, median(mined))
			if len(pending) > 1 { // one report may be false
				counts[i].Pending = max(counts[i].Pending, median(pending))
			}
		}
	}
	return counts, nil
}

// median returns the middle one of some counts, of two the lower.
func median(counts []uint64) uint64 {
	slices.Sort(counts)
	return counts[(len(counts)-1)/2]
}

// readCounts asks all nodes for their counts at the same block, and returns those of the nodes that respond.
func readCounts(ctx context.Context, client *evm.Client, addresses []common.Address) ([]evm.Counts, error) {
	view, err := client.Latest(ctx)
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, countsTimeout)
	defer cancel()
	var responses []evm.Counts
	for _, n := range client.Counts(asking, view.Header().Hash, addresses) {
		if n.Err != nil {
			err = n.Err
			continue
		}
		responses = append(responses, n)
		for j, address := range addresses {
			if first := responses[0]; n.Mined[j] != first.Mined[j] {
				return nil, fmt.Errorf("%s counts %d transactions of %s and %s counts %d: leave the node that is wrong out of --rpc-urls",
					first.Endpoint, first.Mined[j], address, n.Endpoint, n.Mined[j])
			}
		}
	}
	if len(responses) == 0 {
		return nil, fmt.Errorf("no node reports its counts: %w", err)
	}
	return responses, nil
}

// Resync compares keys with the counts and with their rows, and corrects differences. It also enables keys that were stopped
// for a nonce jump. Every step is valid by itself: on an error the earlier steps are done, and a repetition does the rest.
func (a *Admin) Resync(ctx context.Context, counts []KeyCount) ([]Resync, error) {
	var all []Resync
	for _, n := range counts {
		r, err := a.resync(ctx, n)
		all = append(all, r)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

func (a *Admin) resync(ctx context.Context, n KeyCount) (r Resync, err error) {
	k, next := n.Key, n.next()
	r = Resync{Key: k.Address, Mined: n.Mined, NextWas: k.NextNonce, NextIs: k.NextNonce}
	if from := max(k.NextNonce, n.Mined); next > from+fillable {
		return r, refused{fmt.Errorf("a node has %d transactions of %s pending that relayers did not send, which is more than the %d nonces that are filled if it drops them: leave it out of --rpc-urls, or give the next nonce with --set-nonce",
			next-from, k.Address, fillable)}
	}
	if r.PendingWas, r.PendingIs, err = a.Store.Recount(ctx, k.Address); err != nil {
		return r, err
	}
	raised, err := a.Store.AdvanceNonce(ctx, k.Address, k.Generation, next)
	if err != nil {
		return r, err
	}
	if raised {
		r.NextIs = next
	}
	// Nodes have transactions at the nonces below next, maybe another sender's. Relayers fill those that nodes drop later.
	missing, err := a.Store.Gap(ctx, k.Address, k.Generation, next)
	switch {
	case err != nil:
		return r, err
	case missing > fillable:
		return r, refused{fmt.Errorf("%d nonces of %s below its next nonce %d have no transaction, which is more than the %d that are filled: give the right one with --set-nonce",
			missing, k.Address, r.NextIs, fillable)}
	case missing > 0:
		filled, err := a.Store.FillNonceGaps(ctx, k.Address, k.Generation, next, 0)
		if err != nil {
			return r, err
		}
		for _, tx := range filled {
			r.Filled = append(r.Filled, *tx.Nonce)
		}
	}
	if r.Enabled, err = a.Store.EndJump(ctx, k.Address); err != nil {
		return r, err
	}
	sought, err := a.Store.ListMinedCandidates(ctx, []store.KeyNonce{{Key: k.Address, Nonce: n.Mined}}, soughtLimit)
	r.Sought = len(sought)
	return r, asRefused(err)
}

// SetNonce moves a key's next nonce, up or down, and enables the key if it was stopped for a nonce jump. It returns the
// previous nonce. It rejects a nonce at or below one that was signed for, or that a node counts as mined or pending. It
// also rejects one that leaves more than fillable nonces without a transaction. It could not be lowered any more once the
// key has used a higher nonce.
func (a *Admin) SetNonce(ctx context.Context, client *evm.Client, k *relayer.Key, next uint64) (was uint64, enabled bool, err error) {
	counts, err := a.Count(ctx, client, []*relayer.Key{k})
	if err != nil {
		return 0, false, err
	}
	used := counts[0].Highest
	if next < used {
		return 0, false, refused{fmt.Errorf("the next nonce of %s cannot be %d: the nodes count %d transactions mined or pending; give %d or more, or leave the node that is wrong out of --rpc-urls", k.Address, next, used, used)}
	}
	if next > store.MaxNonce {
		return 0, false, refused{fmt.Errorf("the next nonce of %s cannot be %d: give %d or less", k.Address, next, uint64(store.MaxNonce))}
	}
	if from := max(k.NextNonce, counts[0].next()); next > from+fillable {
		return 0, false, refused{fmt.Errorf("the next nonce of %s cannot be %d: it leaves %d nonces without a transaction, which is more than the %d that are filled; give %d or less",
			k.Address, next, next-from, fillable, from+fillable)}
	}
	was, err = a.Store.SetNonce(ctx, k.Address, k.Generation, next)
	if _, used := errors.AsType[*store.NonceUsedError](err); used || errors.Is(err, store.ErrChainChanged) {
		return was, false, refused{err}
	}
	if err != nil {
		return was, false, err
	}
	enabled, err = a.Store.EndJump(ctx, k.Address)
	return was, enabled, err
}
