package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

// readsBeforeProof is how often a block is read that other endpoints lack, before its logs are proven at one.
const readsBeforeProof = 6

// blockLists are the lists of logs of the block that is being read.
type blockLists struct {
	hash  common.Hash
	reads int

	mu    sync.Mutex
	given map[string][]evm.Log // by endpoint
}

// readBlock returns the confirmed logs of a block that need not be final, in the block's order. seen reports that two endpoints have the block.
// Unless doubtful is set, a header that excludes logs needs no other endpoint. The error matches errLate if too few endpoints have the block,
// and errUnconfirmed if those that have it do not settle its logs.
func (c *confirmer) readBlock(ctx context.Context, h evm.Header, doubtful bool) (logs []evm.Log, seen bool, err error) {
	if !doubtful && h.Excludes(c.topics...) && !laterBlooms(c.client.ChainID()) {
		return nil, false, nil
	}
	if c.current == nil || c.current.hash != h.Hash {
		c.current = &blockLists{hash: h.Hash, given: map[string][]evm.Log{}}
	}
	c.current.reads++
	answers, logs, err := c.agree(func(endpoint string) ([]evm.Log, error) { return c.listOf(ctx, endpoint) },
		func([]candidate) ([]evm.Log, error) {
			c.metrics.disagreements.Inc()
			return c.provenBlock(ctx, h.Hash, nil)
		})
	if err == nil {
		return logs, true, nil
	}
	if len(answers) < 2 {
		// Most often the others receive the block a moment later.
		if errors.Is(err, evm.ErrMissing) && c.current.reads%readsBeforeProof != 0 {
			return nil, false, fmt.Errorf("block %d %s: %w: %w", h.Number, h.Hash, errLate, err)
		}
		var single error
		if logs, single = c.provenBlock(ctx, h.Hash, answers); single == nil {
			return logs, true, nil
		}
		err = errors.Join(err, single)
	}
	c.current = nil // each endpoint is asked again
	c.metrics.unconfirmed.Inc()
	return nil, false, fmt.Errorf("block %d %s: %w: %w", h.Number, h.Hash, errUnconfirmed, err)
}

// listOf returns the list of the block that is being read, at one endpoint.
func (c *confirmer) listOf(ctx context.Context, endpoint string) ([]evm.Log, error) {
	b := c.current
	b.mu.Lock()
	logs, given := b.given[endpoint]
	b.mu.Unlock()
	if given {
		return logs, nil
	}
	logs, err := c.lists.readBlock(ctx, endpoint, b.hash)
	if err == nil {
		b.mu.Lock()
		b.given[endpoint] = logs
		b.mu.Unlock()
	}
	return logs, err
}

// provenBlock returns the logs of a block that its receipts prove, as proven does.
func (c *confirmer) provenBlock(ctx context.Context, hash common.Hash, answers []candidate) ([]evm.Log, error) {
	logs, err := c.proven(ctx, func(endpoint string) (evm.Header, error) { return c.client.SealedHeader(ctx, endpoint, hash) }, answers)
	return c.ours(logs), err
}

// laterBlooms reports whether the headers of a chain have the blooms of earlier blocks: those of Avalanche, since its blocks are executed
// after they are accepted (ACP-194).
func laterBlooms(chainID uint64) bool { return chainID == 43113 || chainID == 43114 }
