package store

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// TopUp is a transfer of ether to a key from a funding key.
type TopUp struct {
	From, To common.Address
	Amount   *big.Int // wei
	// PerDay limits the amount that From sends in a day, by UTC, wei. The amount is reduced to it. Nil: no limit.
	PerDay *big.Int
	Fee    *big.Int // per unit of gas, wei
	Gas    uint64   // limit
	// Quiet is how long after a top-up the same key gets no other, because balances may be read from nodes that lag.
	Quiet time.Duration
	// Cap is the maximum number of pending transactions of From.
	Cap int
}

// ErrToppedUp means that the key has a pending top-up, or a recent one.
var ErrToppedUp = errors.New("the key is being topped up")

// TopUp stores a top-up with its nonce, as Accept does with a caller's transaction; it is then signed and sent like one. It
// fails with [ErrToppedUp], with a [relayer.LimitError] if the day's limit is reached, or with a [relayer.FundsError];
// nothing is stored then. Each top-up locks the funding key. That makes the limits exact, and prevents two concurrent
// top-ups of a key, whichever process requests them.
func (s *Store) TopUp(ctx context.Context, t TopUp) (*relayer.Transaction, error) {
	var allocation keyAllocation
	var tx *relayer.Transaction
	var busy bool
	daily := account{scope: scopeTopUp}
	err := s.transaction(ctx, func(b *pgx.Batch) error {
		allocation.lock(b, s, AllocationLimits{Held: []common.Address{t.From}, Cap: t.Cap})
		allocation.budgets.open(Budgets{})
		if t.PerDay != nil {
			allocation.budgets.limits[scopeTopUp] = t.PerDay
		}
		allocation.budgets.lock(b, s, []account{daily})
		b.Queue(`SELECT EXISTS (SELECT FROM relayer_txs WHERE kind = 'topup' AND chain_id = $1 AND to_address = $2
			AND (open OR updated_at > now() - $3::interval))`, s.ChainID, hexAddress(t.To), t.Quiet).QueryRow(func(row pgx.Row) error {
			return row.Scan(&busy)
		})
		return nil
	}, func(b *pgx.Batch) error {
		switch {
		case allocation.failedOver:
			return errFailedOver
		case busy:
			return ErrToppedUp
		}
		amount := t.Amount
		if left := allocation.budgets.left(daily); left != nil && left.Cmp(amount) < 0 {
			amount = left
		}
		if amount.Sign() <= 0 {
			return &relayer.LimitError{Limit: "top-ups of a day", After: max(time.Second, time.Until(allocation.budgets.day.AddDate(0, 0, 1)))}
		}
		reserve := new(big.Int).Mul(t.Fee, new(big.Int).SetUint64(t.Gas))
		cost := relayer.Cost(amount, reserve)
		switch from, err := allocation.fundingKey(); {
		case err != nil:
			return err
		case !from.covers(cost, true):
			return &relayer.FundsError{Need: cost}
		case from.load() >= allocation.cap:
			return &relayer.LimitError{Limit: "the funding key is full", After: queueRetry}
		default:
			tx = s.transactionOf(&NewTransaction{
				ID: uuid.Must(uuid.NewV7()), Target: hexAddress(t.From), Kind: relayer.KindTopUp, Reserve: reserve,
				Request: relayer.Request{To: &t.To, Value: amount, GasLimit: t.Gas, Speed: relayer.Fast},
			}, allocation.now)
			tx.From, tx.Nonce = from.address, new(allocation.assignNonce(from, amount, reserve))
		}
		allocation.budgets.take(daily, amount)
		s.insert(b, []*relayer.Transaction{tx}, nil)
		allocation.store(b, s)
		return nil
	}, nil)
	if taken := new(pgconn.PgError); errors.As(err, &taken) && taken.ConstraintName == "relayer_txs_topup" {
		err = ErrToppedUp // a concurrent top-up by another funding key
	}
	if err != nil {
		return nil, fmt.Errorf("top %s up: %w", t.To, err)
	}
	return tx, nil
}

// fundingKey returns the only locked key, if it may be used.
func (a *keyAllocation) fundingKey() (*lockedKey, error) {
	switch {
	case len(a.keys) == 0 || !a.keys[0].funding:
		return nil, fmt.Errorf("%w: the funding key is not registered", relayer.ErrUnavailable)
	case a.keys[0].paused:
		return nil, relayer.ErrPaused
	case !a.keys[0].enabled:
		return nil, fmt.Errorf("%w: %s", relayer.ErrDisabled, a.keys[0].disabled)
	case a.keys[0].stuck:
		return nil, fmt.Errorf("%w: the funding key is stuck", relayer.ErrUnavailable)
	}
	if !a.keys[0].compared {
		return nil, fmt.Errorf("%w: the funding key was not compared with the chain yet", relayer.ErrUnavailable)
	}
	return a.keys[0], nil
}
