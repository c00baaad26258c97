package store

import (
	"context"
	"errors"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Replacement holds new contents for a transaction that is not mined.
type Replacement struct {
	ID uuid.UUID
	relayer.Request
	// Reserve is the maximum gas cost of the new contents, wei; nil: unchanged.
	Reserve *big.Int
	// Attempt is the signed attempt with the new contents, for the same nonce; nil for a transaction without a nonce.
	Attempt *relayer.Attempt
	// Only is the only key that may send them; zero: unchanged.
	Only common.Address
}

// ErrRaced means that another process has signed for the transaction meanwhile: read it again.
var ErrRaced = errors.New("another process signed for the transaction at the same time")

// Replace changes a transaction's contents and stores the attempt with them, in one step. It fails with [ErrRaced],
// [relayer.ErrNotFound] or a [relayer.StateError]. Nothing is changed then, unless the error is [postgres.ErrUnknown].
func (s *Store) Replace(ctx context.Context, r *Replacement) error {
	return postgres.InTx(ctx, s.db, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, selectTransactions+` WHERE id = $1 AND chain_id = $2 AND pool_id = $3 FOR UPDATE`, r.ID, s.ChainID, s.Pool)
		if err != nil {
			return fmt.Errorf("replace: %w", err)
		}
		was, err := pgx.CollectExactlyOneRow(rows, scanTransaction)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return relayer.ErrNotFound
		case err != nil:
			return fmt.Errorf("replace: %w", err)
		case was.Status.Final() || was.Status == relayer.Mined || was.Intent != relayer.IntentSend:
			return &relayer.StateError{Status: was.Status, Doing: "replace"}
		case (was.Nonce == nil) != (r.Attempt == nil), r.Attempt != nil && (*was.Nonce != r.Attempt.Nonce || was.From != r.Attempt.From):
			return ErrRaced
		}
		if err := s.reserveAgain(ctx, tx, was, r.Reserve); err != nil {
			return err
		}
		var only *string
		if r.Only != (common.Address{}) {
			only = new(hexAddress(r.Only))
		}
		if _, err := tx.Exec(ctx, keepContents, r.ID); err != nil {
			return fmt.Errorf("replace: keep the contents for webhooks: %w", err)
		}
		if _, err := tx.Exec(ctx, `WITH changed AS (
			UPDATE relayer_txs t SET (`+contents.names()+`) = (SELECT r.* FROM `+contents.rows(5)+`),
				reserve_wei = coalesce($3::text::numeric, reserve_wei),
				target = CASE WHEN t.nonce IS NULL THEN coalesce($4, t.target) ELSE t.target END, revision = revision + 1, updated_at = now()
			WHERE t.id = $2 RETURNING t.*)`+enqueueDeliveriesSQL+`SELECT`,
			append([]any{s.targets(), r.ID, relayer.Decimal(r.Reserve), only}, arrays(contents, (&relayer.Transaction{Request: r.Request}).Row())...)...); err != nil {
			return fmt.Errorf("replace: %w", err)
		}
		if r.Attempt == nil {
			return nil
		}
		stored, err := s.storeAttempts(ctx, tx, []*relayer.Attempt{r.Attempt})
		if err == nil && !stored[0] {
			err = ErrRaced
		}
		return err
	})
}
