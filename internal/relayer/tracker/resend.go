package tracker

import (
	"context"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// lowestOnly are the rejection reasons for which only the lowest nonce of a key is sent again, because nodes would reject
// the others likewise.
var lowestOnly = []string{evm.Underpriced.String(), evm.FeeCapTooLow.String(), evm.InsufficientFunds.String()}

// conditions are the state on which a key's rejected transactions depend, as of the last maintenance.
type conditions struct {
	balance     *big.Int
	mined       uint64
	unsent      bool // whether there is a first unsent nonce
	firstUnsent uint64
}

// eager returns the keys whose rejected transactions are sent again before their pause is over, because the reason may have
// passed. It may have if a node is reachable again, fees fell by a tenth, the key has more ether, or a lower nonce was
// accepted or mined. Where that did not help, the next such send has to wait.
func (r *round) eager(ctx context.Context) ([]common.Address, error) {
	first, err := r.cfg.Store.FirstUnsent(ctx, r.mined())
	if err != nil {
		return nil, err
	}
	everybody := r.feesFell(ctx) || r.recovered
	var keys []common.Address
	for i, k := range r.keys {
		was, seen := r.observations.conditions[k.Address]
		now := conditions{balance: k.Balance, mined: r.sure[i]}
		now.firstUnsent, now.unsent = first[k.Address]
		r.observations.conditions[k.Address] = now
		richer := now.balance != nil && (was.balance == nil || now.balance.Cmp(was.balance) > 0) // the first reading may show it
		moved := now.mined > was.mined || was.unsent && now.unsent && now.firstUnsent > was.firstUnsent
		pace := r.observations.paces.of(k.Address)
		pace.early = now.unsent && (pace.early || everybody || seen && (richer || moved))
		if pace.ignoresPauses(time.Now()) {
			keys = append(keys, k.Address)
		}
	}
	return keys, nil
}

// feesFell reports whether the fees are a tenth or more below their maximum since they last fell. If no node responds, it
// returns false.
func (r *round) feesFell(ctx context.Context) bool {
	fees, err := r.cfg.Chain.Fees(ctx)
	if ctx.Err() == nil {
		r.noteFees(err)
	}
	if err != nil {
		return false
	}
	now, most := fees.Price(evm.Fast), r.observations.price
	fell := most != nil && new(big.Int).Mul(now, big.NewInt(10)).Cmp(new(big.Int).Mul(most, big.NewInt(9))) <= 0
	if most == nil || fell || now.Cmp(most) > 0 {
		r.observations.price = now
	}
	return fell
}

// A node may return by hash a transaction that its pending count lacks. Both constants are multiples of Config.Abandoned.
const (
	// foundPause is how long the node is not queried about the key again.
	foundPause = 2
	// foundTrust is the age of an attempt up to which such a response is trusted. Providers return by hash transactions
	// that their nodes have dropped.
	foundTrust = 30
)

// absent returns the attempts that the round's node does not have, and those that are too old to trust its response. While
// an attempt is paused, the response is trusted. The other attempts that the node has are recorded as broadcasted. If the
// node does not respond, all are sent again.
func (r *round) absent(ctx context.Context, attempts []*relayer.Attempt) ([]*relayer.Attempt, error) {
	if len(attempts) == 0 {
		return nil, nil
	}
	hashes := make([]common.Hash, len(attempts))
	for i, a := range attempts {
		hashes[i] = a.Hash
	}
	presence, err := r.view.Transactions(ctx, hashes)
	if err != nil {
		return attempts, ctx.Err()
	}
	var lacking []*relayer.Attempt
	var known []store.Broadcast
	found := map[common.Address]bool{} // whether the node has all of a key's attempts
	for i, a := range attempts {
		if _, ok := found[a.From]; !ok {
			found[a.From] = true
		}
		old := r.now().Sub(a.CreatedAt) > foundTrust*r.cfg.Abandoned
		if presence[i] == evm.Absent || old && !a.Paused {
			lacking, found[a.From] = append(lacking, a), false
			continue
		}
		if old {
			continue
		}
		known = append(known, store.Broadcast{
			TxID: a.TxID, Number: a.Number, From: a.From, Nonce: a.Nonce, Hash: a.Hash, Status: relayer.Broadcasted,
		})
	}
	for key, all := range found {
		if all {
			r.observations.found[key] = time.Now()
		}
	}
	if len(known) == 0 {
		return lacking, nil
	}
	for _, b := range known {
		r.cfg.Sender.NodeHas(b.Hash)
	}
	return lacking, r.cfg.Store.RecordBroadcasts(ctx, known)
}
