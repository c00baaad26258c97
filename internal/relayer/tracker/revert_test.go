package tracker_test

import (
	"encoding/hex"
	"slices"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/relayertest"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/contracts"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// With the policy, the status of a transaction that reverted on the chain includes the revert data. Without the policy, or
// if no node provides the data, the status is still reverted.
func TestReverted_TellsTheData(t *testing.T) {
	for name, test := range map[string]struct {
		policy  bool
		refused []string
		given   bool
	}{
		"asked for":     {policy: true, given: true},
		"not available": {policy: true, refused: []string{"debug_traceTransaction", "eth_call"}},
		"not asked for": {},
	} {
		t.Run(name, func(t *testing.T) {
			var node *proxy.Proxy
			f := setup(t, 1, func(o *relayertest.Options) {
				node = before(t, o)
				o.Tracker = func(c *tracker.Config) {
					if test.policy {
						client, err := evm.Open(evm.Config{ChainID: 1337, Endpoints: o.RPC})
						require.NoError(t, err)
						t.Cleanup(client.Close)
						c.RevertData = client.RevertData
					}
				}
			})
			if len(test.refused) > 0 {
				node.SetRules(proxy.Rule{
					Name: "refused", Methods: test.refused, Fault: proxy.Fault{Kind: proxy.Refuse, Code: -32601, Message: "the method does not exist"},
				})
			}
			counter := f.chain.Counter()
			submit := func(data []byte) *relayer.Transaction {
				tx, err := f.Submit(t.Context(), relayer.Submission{RelayerID: relayertest.PoolID, Caller: "test", Request: relayer.Request{
					To: &counter, Data: data, GasLimit: 200_000, Speed: relayer.Fast,
				}})
				require.NoError(t, err)
				return tx
			}
			fails, succeeds := submit(contracts.Refuse(7)), submit(contracts.Hit(common.Hash{1}))
			done := f.commitUntil(fails, relayer.Reverted)
			if test.given {
				data := slices.Concat(contracts.RefusedSelector(), common.BytesToHash(done.From[:]).Bytes(), common.BytesToHash([]byte{7}).Bytes())
				require.Equal(t, "Transaction reverted on-chain (revert_data: 0x"+hex.EncodeToString(data)+")", done.StatusReason)
			} else {
				require.Equal(t, "execution reverted", done.StatusReason)
			}
			require.Empty(t, f.commitUntil(succeeds, relayer.Confirmed).StatusReason)
		})
	}
}
