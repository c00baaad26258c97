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

// Funds are what a key's transactions may cost, at one moment.
type Funds struct {
	Key *relayer.Key
	// Pending is what those may cost that are not mined, wei.
	Pending *big.Int
	// Refused: a node has refused the latest bytes of one of them, and none has taken them since.
	Refused bool

	committed string     // as it was written down then
	read      *time.Time // when the balance had been
}

// Funds reads those of all keys, in one snapshot: whatever is accepted later is not among them. Read the balances
// after it, and give both to [Store.RecordBalances].
func (l *Store) Funds(ctx context.Context) ([]*Funds, error) {
	keys, err := l.Keys(ctx)
	if err != nil {
		return nil, err
	}
	byAddress := map[string]*Funds{}
	all := make([]*Funds, len(keys))
	for i, k := range keys {
		all[i] = &Funds{Key: k, Pending: new(big.Int), committed: "0"}
		byAddress[hexAddress(k.Address)] = all[i]
	}
	rows, err := l.db.Query(ctx, `SELECT k.address, k.committed_wei::text, k.balance_at, coalesce(p.wei, 0)::text, coalesce(p.refused, false)
		FROM relayer_keys k LEFT JOIN LATERAL (
			SELECT sum(t.value_wei + coalesce(t.reserve_wei, 0)) AS wei, bool_or(t.status = 'allocated' AND t.status_reason <> '') AS refused
			FROM relayer_txs t WHERE t.chain_id = k.chain_id AND t.relayer_address = k.address AND t.open AND t.nonce IS NOT NULL
				AND t.status <> 'mined') p ON true
		WHERE k.chain_id = $1 AND k.pool_id = $2`, l.ChainID, l.Pool)
	if err != nil {
		return nil, fmt.Errorf("read funds: %w", err)
	}
	var address, committed, pending string
	var read *time.Time
	var refused bool
	if _, err := pgx.ForEachRow(rows, []any{&address, &committed, &read, &pending, &refused}, func() error {
		if f := byAddress[address]; f != nil { // otherwise the key is newer than the list of them
			f.committed, f.read, f.Pending, f.Refused = committed, read, parseDecimal(&pending), refused
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read funds: %w", err)
	}
	return all, nil
}

// BalanceReading is what a look at a key has found.
type BalanceReading struct {
	Key common.Address
	// Balance in wei, read after Funds was; nil: it was not looked at.
	Balance *big.Int
	Funds   *Funds
}

// KeyStateChange is what the system makes of a key.
type KeyStateChange struct {
	Enabled bool
	Reason  string    // why it is not
	Until   time.Time // when it is looked into again; zero: at each look
	Error   string    // "": the last one stays
}

// RecordBalances writes down what a look has found, and what the system makes of each key: decide gets the key as it is now,
// under its lock, with the database's time, and returns nil where all stays as it is. Where a key is switched on or off,
// announce is called within the same database transaction. An operator's pause is another matter, and stays.
func (l *Store) RecordBalances(ctx context.Context, looks []BalanceReading, decide func(k *relayer.Key, now time.Time) *KeyStateChange,
	announce func(context.Context, pgx.Tx, *relayer.Key) error,
) (switched []*relayer.Key, err error) {
	byKey := map[common.Address]BalanceReading{}
	addresses := make([]common.Address, len(looks))
	for i, look := range looks {
		byKey[look.Key], addresses[i] = look, look.Key
	}
	err = pgx.BeginFunc(ctx, l.db, func(tx pgx.Tx) error {
		var now time.Time
		var keys []*relayer.Key
		batch := new(pgx.Batch)
		batch.Queue(selectKeys+` WHERE chain_id = $1 AND pool_id = $2 AND address = ANY($3) ORDER BY address FOR UPDATE`,
			l.ChainID, l.Pool, hexAddresses(addresses)).Query(func(rows pgx.Rows) (err error) {
			keys, err = pgx.CollectRows(rows, scanKey)
			return err
		})
		batch.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		batch = new(pgx.Batch)
		for _, k := range keys {
			look := byKey[k.Address]
			if look.Balance != nil {
				k.Balance = look.Balance
				l.fund(batch, look)
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
				l.ChainID, hexAddress(k.Address), k.Enabled, k.DisabledReason, timeOrNil(k.DisabledUntil), k.Checks, k.LastError)
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
		l.notifyDeliveries()
	}
	return switched, nil
}

// fund queues a key's balance. It has promised the amounts that were pending when the funds were read, and later ones.
// The balance was read later, and the funds of what was mined in between are taken off twice, until the next look: a key
// owns what is written down, or more. If somebody else has looked meanwhile, that stays.
func (l *Store) fund(b *pgx.Batch, look BalanceReading) {
	f := look.Funds
	b.Queue(`UPDATE relayer_keys SET balance_wei = $3::text::numeric, balance_at = now(), last_seen_at = now(),
			committed_wei = greatest(0, committed_wei - $4::text::numeric) + $5::text::numeric
		WHERE chain_id = $1 AND address = $2 AND balance_at IS NOT DISTINCT FROM $6`,
		l.ChainID, hexAddress(look.Key), look.Balance.String(), f.committed, f.Pending.String(), f.read)
}
