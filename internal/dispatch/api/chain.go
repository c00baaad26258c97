package api

import (
	"context"
	"fmt"
	"math/big"
	"net/http"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

// errNoChain is the answer to a request that names a chain before the database has one.
var errNoChain = &statusError{
	http.StatusServiceUnavailable, "unavailable", "the chain is not known before a consumer has seen a relayer, or the API has API_CHAIN_ID; nothing was stored: try again",
}

// checkChain compares the chain that a request names with that of the transactions; nil is any.
func (c *call) checkChain(ctx context.Context, named *big.Int) error {
	if named == nil {
		return nil
	}
	chain, err := c.store.Chain(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", dispatch.ErrUnavailable, err)
	case chain == 0:
		return errNoChain
	case named.Cmp(new(big.Int).SetUint64(chain)) != 0:
		return dispatch.Invalidf("chainId", "is %v, and transactions of this API are for chain %d: use the API of the other chain", named, chain)
	}
	return nil
}

// shownChain returns the chain of the transactions as answers show it; nil while there is none.
func (c *call) shownChain(ctx context.Context) (*uint64, error) {
	chain, err := c.store.Chain(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", dispatch.ErrUnavailable, err)
	}
	if chain == 0 {
		return nil, nil
	}
	return &chain, nil
}
