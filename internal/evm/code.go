package evm

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// HasCode reports whether an account is a contract in the newest state of one endpoint. Nothing is concluded from other endpoints: the
// caller compares.
func (c *Client) HasCode(ctx context.Context, endpoint string, account common.Address) (bool, error) {
	ep, err := c.named(endpoint)
	if err != nil {
		return false, err
	}
	var code hexutil.Bytes
	read := call{method: "eth_getCode", params: []any{account, "latest"}}
	read.decode = func(result []byte) error { return json.Unmarshal(result, &code) }
	answers, err := ep.askPatiently(ctx, []call{read})
	if err == nil {
		err = answers[0].err
	}
	if err != nil {
		return false, fmt.Errorf("read the code of %s: %w", account, err)
	}
	return len(code) > 0, nil
}
