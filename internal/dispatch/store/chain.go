package store

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
)

// ClaimChain returns the chain of the database's transactions. If it has none yet, that is the given one from then on.
func (s *Store) ClaimChain(ctx context.Context, id uint64) (uint64, error) {
	if known := s.chain.Load(); known != 0 {
		return known, nil
	}
	if id == 0 || id > math.MaxInt64 {
		return 0, fmt.Errorf("%d is no chain id", id)
	}
	if _, err := s.db.Exec(ctx, `INSERT INTO relay_chain (chain_id) VALUES ($1) ON CONFLICT DO NOTHING`, int64(id)); err != nil {
		return 0, fmt.Errorf("store the chain: %w", err)
	}
	known, err := s.Chain(ctx)
	if err == nil && known == 0 {
		err = errors.New("store the chain: its row was deleted")
	}
	return known, err
}

// Chain returns the chain of the database's transactions; 0 while it has none. A chain that was read once is kept, because it does not
// change.
func (s *Store) Chain(ctx context.Context) (uint64, error) {
	if known := s.chain.Load(); known != 0 {
		return known, nil
	}
	var id int64
	err := s.db.QueryRow(ctx, `SELECT chain_id FROM relay_chain`).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the chain: %w", err)
	}
	s.chain.Store(uint64(id))
	return uint64(id), nil
}

// HasOpen reports whether the database has transactions that are not final.
func (s *Store) HasOpen(ctx context.Context) (open bool, err error) {
	if err := s.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM relay_transactions WHERE open)`).Scan(&open); err != nil {
		return false, fmt.Errorf("look for transactions that are not final: %w", err)
	}
	return open, nil
}
