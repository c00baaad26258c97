package store

import (
	"context"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Funds are the amounts that a key's transactions may cost, at one moment.
type Funds struct {
	Key *relayer.Key
	// Pending is the maximum cost of the transactions that are not mined, wei.
	Pending *big.Int
	// Refused reports that a node rejected the latest bytes of one of them, and none has accepted them since.
	Refused bool

	committed string     // as stored then
	read      *time.Time // when the balance was read
}

// Funds reads the funds of all keys in one snapshot, which excludes transactions accepted later. Read the balances after
// it, and pass both to [Store.RecordBalances].
func (s *Store) Funds(ctx context.Context) ([]*Funds, error) {
	keys, err := s.Keys(ctx)
	if err != nil {
		return nil, err
	}
	byAddress := map[string]*Funds{}
	all := make([]*Funds, len(keys))
	for i, k := range keys {
		all[i] = &Funds{Key: k, Pending: new(big.Int), committed: "0"}
		byAddress[hexAddress(k.Address)] = all[i]
	}
	rows, err := s.db.Query(ctx, `SELECT k.address, k.committed_wei::text, k.balance_at, coalesce(p.wei, 0)::text, coalesce(p.refused, false)
		FROM relayer_keys k LEFT JOIN LATERAL (
			SELECT sum(t.value_wei + coalesce(t.reserve_wei, 0)) AS wei, bool_or(t.status = 'allocated' AND t.status_reason <> '') AS refused
			FROM relayer_txs t WHERE t.chain_id = k.chain_id AND t.relayer_address = k.address AND t.open AND t.nonce IS NOT NULL
				AND t.status <> 'mined') p ON true
		WHERE k.chain_id = $1 AND k.pool_id = $2`, s.ChainID, s.Pool)
	if err != nil {
		return nil, fmt.Errorf("read funds: %w", err)
	}
	var address, committed, pending string
	var read *time.Time
	var refused bool
	if _, err := pgx.ForEachRow(rows, []any{&address, &committed, &read, &pending, &refused}, func() error {
		if f := byAddress[address]; f != nil { // otherwise the key is newer than the list of keys
			f.committed, f.read, f.Pending, f.Refused = committed, read, relayer.ParseDecimal(&pending), refused
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read funds: %w", err)
	}
	return all, nil
}

// BalanceReading is the result of one balance check of a key.
type BalanceReading struct {
	Key common.Address
	// Balance in wei, read after Funds; nil if it was not read.
	Balance *big.Int
	Funds   *Funds
}

// KeyStateChange is the state that the balance policy gives a key.
type KeyStateChange struct {
	Enabled bool
	Reason  string    // why it is not enabled
	Until   time.Time // when it is checked again; zero: at each check
	Error   string    // "": keep the last one
}

// RecordBalances stores balance readings and the resulting state of each key. decide receives the key as it is now, under
// its lock, with the database's time; it returns nil to change nothing. Where a key is enabled or disabled, announce is
// called within the same database transaction. An operator's pause is separate and is kept.
func (s *Store) RecordBalances(ctx context.Context, readings []BalanceReading, decide func(k *relayer.Key, now time.Time) *KeyStateChange,
	announce func(context.Context, pgx.Tx, *relayer.Key) error,
) (switched []*relayer.Key, err error) {
	byKey := map[common.Address]BalanceReading{}
	addresses := make([]common.Address, len(readings))
	for i, reading := range readings {
		byKey[reading.Key], addresses[i] = reading, reading.Key
	}
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		var now time.Time
		var keys []*relayer.Key
		batch := new(pgx.Batch)
		batch.Queue(selectKeys+` WHERE chain_id = $1 AND pool_id = $2 AND address = ANY($3) ORDER BY address FOR UPDATE`,
			s.ChainID, s.Pool, hexAddresses(addresses)).Query(func(rows pgx.Rows) (err error) {
			keys, err = pgx.CollectRows(rows, scanKey)
			return err
		})
		batch.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		batch = new(pgx.Batch)
		for _, k := range keys {
			reading := byKey[k.Address]
			if reading.Balance != nil {
				k.Balance = reading.Balance
				s.fund(batch, reading)
			}
			d := decide(k, now)
			if d == nil {
				continue
			}
			if k.Enabled != d.Enabled {
				switched = append(switched, k)
			}
			k.Checks++
			if d.Enabled != k.Enabled && !d.Enabled {
				k.Checks = 0
			}
			k.Enabled, k.DisabledReason, k.DisabledUntil = d.Enabled, d.Reason, d.Until
			if d.Error != "" {
				k.LastError = d.Error
			}
			batch.Queue(`UPDATE relayer_keys SET enabled = $3, disabled_reason = $4, disabled_until = $5, disabled_checks = $6,
					last_error = $7, updated_at = now() WHERE chain_id = $1 AND address = $2`,
				s.ChainID, hexAddress(k.Address), k.Enabled, k.DisabledReason, timeOrNil(k.DisabledUntil), k.Checks, k.LastError)
		}
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		for _, k := range switched {
			if err := announce(ctx, tx, k); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("write down what keys own: %w", err)
	}
	if len(switched) > 0 {
		s.notifyDeliveries()
	}
	return switched, nil
}

// fund queues the update of a key's balance. The amounts that were pending when the funds were read, and later ones, stay
// committed. The balance was read later, so the cost of transactions mined in between is subtracted twice, until the next
// check. A key therefore owns the recorded amount or more. If another process has stored a balance meanwhile, that one is
// kept.
func (s *Store) fund(b *pgx.Batch, reading BalanceReading) {
	f := reading.Funds
	b.Queue(`UPDATE relayer_keys SET balance_wei = $3::text::numeric, balance_at = now(), last_seen_at = now(),
			committed_wei = greatest(0, committed_wei - $4::text::numeric) + $5::text::numeric
		WHERE chain_id = $1 AND address = $2 AND balance_at IS NOT DISTINCT FROM $6`,
		s.ChainID, hexAddress(reading.Key), reading.Balance.String(), f.committed, f.Pending.String(), f.read)
}
