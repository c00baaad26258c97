package evm

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// Counts holds the transaction counts of some accounts, as one endpoint reports them.
type Counts struct {
	Endpoint string
	Mined    []uint64 // up to the block, in the order of the accounts
	Pending  []uint64 // mined or, without a gap, in the endpoint's pool
	Err      error    // no answer, or the endpoint does not have the block; then Mined and Pending are empty
}

// countsRetry is the pause before an endpoint that does not have the block yet is asked again.
const countsRetry = 100 * time.Millisecond

// Counts asks all endpoints concurrently for the counts of accounts at one block, so that honest endpoints agree. An
// endpoint that does not have the block is asked again until ctx ends: it lags, or is on another chain. The zero block
// is the newest block of each endpoint.
func (c *Client) Counts(ctx context.Context, block common.Hash, addrs []common.Address) []Counts {
	return c.CountsWithin(ctx, 0, block, addrs)
}

// CountsWithin is Counts, and with stragglers above 0 endpoints that answer later than the first answer plus stragglers have
// an error.
func (c *Client) CountsWithin(ctx context.Context, stragglers time.Duration, block common.Hash, addrs []common.Address) []Counts {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := make([]Counts, len(c.endpoints))
	var wg sync.WaitGroup
	var first sync.Once
	for i, ep := range c.endpoints {
		if ep.healthOf(time.Now()) >= standingLimited {
			all[i] = Counts{Endpoint: ep.name, Err: ErrNoEndpoint}
			continue
		}
		wg.Go(func() {
			if all[i] = c.countsOf(ctx, ep.name, block, addrs); all[i].Err == nil && stragglers > 0 {
				first.Do(func() { time.AfterFunc(stragglers, cancel) })
			}
		})
	}
	wg.Wait()
	return all
}

func (c *Client) countsOf(ctx context.Context, endpoint string, block common.Hash, addrs []common.Address) Counts {
	var stale error
	for {
		n := Counts{Endpoint: endpoint}
		var view *View
		if block == (common.Hash{}) {
			view, n.Err = c.LatestOf(ctx, endpoint)
		} else {
			view, n.Err = c.ViewAt(ctx, endpoint, block)
		}
		if n.Err == nil {
			n.Mined, n.Err = view.Nonces(ctx, addrs)
		}
		if n.Err == nil {
			n.Pending, n.Err = view.PendingNonces(ctx, addrs)
		}
		if n.Err == nil {
			return n
		}
		n.Mined, n.Pending = nil, nil
		if stale != nil && ctx.Err() != nil { // cut off while asking again: the endpoint's last answer counts
			n.Err = stale
			return n
		}
		if !errors.Is(n.Err, ErrStale) {
			return n
		}
		stale = n.Err
		select {
		case <-ctx.Done():
			return n
		case <-time.After(countsRetry):
		}
	}
}
