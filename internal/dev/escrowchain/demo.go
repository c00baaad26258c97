package escrowchain

import (
	"context"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/params"

	"github.com/rollcall-dev/rollcall/internal/dev/contract"
)

// demoGas is enough for each transaction of a demonstration.
const demoGas = 2_000_000

// DemoPayee returns the receiver of the amounts that a demonstration releases, an address without a key.
func DemoPayee() common.Address {
	return common.BytesToAddress(crypto.Keccak256([]byte("rollcall development chain, payee")))
}

// Demo creates an escrow of the Deployer and settles it: released if the number is even, and refunded if it is odd. It returns the escrow's
// address. After an error the escrow may exist, settled or not.
func Demo(ctx context.Context, chain contract.Backend, factory common.Address, number int) (common.Address, error) {
	key := Deployer()
	// The payer is its own arbiter, so that one key can do both.
	terms := Terms{Payee: DemoPayee(), Arbiter: crypto.PubkeyToAddress(key.PublicKey), ReleaseDelay: uint64(time.Hour.Seconds()), ApprovalsRequired: 1}
	receipt, err := contract.Send(ctx, chain, key, contract.Transaction{To: &factory, Value: big.NewInt(params.GWei), Data: Create(terms), Gas: demoGas})
	if err != nil {
		return common.Address{}, fmt.Errorf("create an escrow: %w", err)
	}
	escrow, err := Created(receipt)
	if err != nil {
		return common.Address{}, err
	}
	settle, what := Approve(), "release"
	if number%2 == 1 {
		settle, what = Refund(), "refund"
	}
	if _, err := contract.Send(ctx, chain, key, contract.Transaction{To: &escrow, Data: settle, Gas: demoGas}); err != nil {
		return escrow, fmt.Errorf("%s escrow %s: %w", what, escrow, err)
	}
	return escrow, nil
}
