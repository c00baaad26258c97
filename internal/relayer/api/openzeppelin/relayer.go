package openzeppelin

import (
	"math/big"
	"strings"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// NetworkType is the network_type of every relayer.
const NetworkType = "evm"

// FromRelayer returns a relayer in OpenZeppelin's format.
func FromRelayer(r *relayer.Relayer) Relayer {
	out := Relayer{
		ID: r.ID, Name: r.Name, Network: r.Network, NetworkType: NetworkType, Paused: r.Paused, SignerID: r.SignerID,
		SystemDisabled: &r.Disabled,
		Policies: &Policies{
			MinBalance: r.MinBalance, GasLimitEstimation: true, GasPriceCap: r.GasPriceCap, EIP1559Pricing: &r.EIP1559,
			IncludeRevertData: &r.IncludeRevertData,
		},
	}
	if out.Name == "" {
		out.Name = r.ID
	}
	if out.Policies.MinBalance == nil {
		out.Policies.MinBalance = new(big.Int)
	}
	if r.Address != (common.Address{}) {
		out.Address = new(r.Address.Hex())
	}
	for _, a := range r.WhitelistReceivers {
		out.Policies.WhitelistReceivers = append(out.Policies.WhitelistReceivers, a.Hex())
	}
	if r.Disabled {
		out.DisabledReason = disabledReason(r.DisabledReason)
	}
	return out
}

// disabledReason maps the relayer's reason to the nearest of OpenZeppelin's types.
func disabledReason(reason string) *DisabledReason {
	kind := RPCValidationFailed
	switch {
	case strings.Contains(reason, "balance"):
		kind = BalanceCheckFailed
	case strings.Contains(reason, "nonce"):
		kind = NonceSyncFailed
	}
	return &DisabledReason{Type: kind, Details: reason}
}
