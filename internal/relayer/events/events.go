package events

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// The events, with OpenZeppelin's names.
const (
	EventTransaction  = "transaction_update"
	EventRelayerState = "relayer_state_update"
)

// TransactionUpdate is the payload of [EventTransaction].
type TransactionUpdate struct {
	PayloadType string `json:"payload_type"` // "transaction"
	openzeppelin.Transaction
	// Revision grows with each change of the transaction: a lower revision than the highest seen is outdated.
	Revision int `json:"revision"`
}

// RelayerDisabled is the payload of [EventRelayerState] when the system disabled a relayer.
type RelayerDisabled struct {
	PayloadType   string               `json:"payload_type"` // "relayer_disabled"
	Relayer       openzeppelin.Relayer `json:"relayer"`
	DisableReason string               `json:"disable_reason"`
}

// RelayerEnabled is the payload of [EventRelayerState] when a relayer is enabled again.
type RelayerEnabled struct {
	PayloadType string               `json:"payload_type"` // "relayer_enabled"
	Relayer     openzeppelin.Relayer `json:"relayer"`
	RetryCount  uint32               `json:"retry_count"` // number of checks until then
}

// NewRelayerDisabled returns the event of a relayer that the system disabled for a reason.
func NewRelayerDisabled(r *relayer.Relayer, reason string) RelayerDisabled {
	return RelayerDisabled{Relayer: openzeppelin.FromRelayer(r), DisableReason: reason}
}

// NewRelayerEnabled returns the event of a relayer that is enabled again, after a number of checks.
func NewRelayerEnabled(r *relayer.Relayer, checks uint32) RelayerEnabled {
	return RelayerEnabled{Relayer: openzeppelin.FromRelayer(r), RetryCount: checks}
}

// Pool is a pool of keys on a chain. Other pools may be in the same database.
type Pool struct {
	ChainID uint64
	ID      string
}

// Source returns the pool's deliveries.
func (p Pool) Source() webhook.Source {
	return webhook.Source{
		Table:       "relayer_deliveries",
		Scope:       []webhook.ScopeColumn{{Name: "chain_id", Value: int64(p.ChainID)}, {Name: "pool_id", Value: p.ID}},
		Event:       `CASE WHEN c.payload IS NULL THEN '` + EventTransaction + `' ELSE '` + EventRelayerState + `' END`,
		Transaction: `CASE WHEN c.payload IS NULL THEN c.subject END`,
		Columns:     columns,
		Joins: `LEFT JOIN LATERAL (SELECT * FROM relayer_txs WHERE id = c.subject LIMIT 1) AS t ON true
			LEFT JOIN LATERAL (SELECT max_fee, max_priority FROM relayer_attempts
				WHERE tx_hash = '0x' || encode(c.tx_hash, 'hex') AND tx_id = c.subject LIMIT 1) AS a ON true`,
		Scan: func(row pgx.CollectableRow) (webhook.Payload, error) {
			d, err := pgx.RowToAddrOfStructByName[delivery](postgres.Sparse{CollectableRow: row})
			return d.payload, err
		},
	}
}

// columns are those of a [delivery]: the transaction's, with the values of the change from the delivery's row.
var columns = `c.payload, c.contents, a.max_fee::text AS offered_fee, a.max_priority::text AS offered_tip, ` +
	relayer.SelectList[relayer.TransactionRow]("t", map[string]string{
		"revision": "c.revision", "status": "c.status", "status_reason": "c.status_reason", "intent": "coalesce(c.intent, 'send')",
		"attempts": "c.tx_attempts", "relayer_address": "'0x' || encode(c.relayer_address, 'hex')", "nonce": "c.nonce",
		"tx_hash": "'0x' || encode(c.tx_hash, 'hex')", "sent_at": "c.sent_at", "confirmed_at": "c.confirmed_at",
	})

// delivery is a claimed row.
type delivery struct {
	Payload  json.RawMessage `db:"payload"`  // of a relayer's event; nil for a change of a transaction
	Contents json.RawMessage `db:"contents"` // the transaction's contents at the change; nil if the row still has them
	// TransactionRow is the transaction as it was at the change, but for Contents. CreatedAt is zero if the transaction was
	// deleted.
	relayer.TransactionRow
}

// errPurged is why a replayed delivery becomes a dead letter if its transaction has been deleted.
var errPurged = errors.New("its transaction was deleted because of its age")

// payload returns the payload of the row's event.
func (d *delivery) payload() (any, error) {
	if d.Payload != nil {
		return d.Payload, nil
	}
	tx, err := d.transaction()
	if err != nil {
		return nil, err
	}
	return TransactionUpdate{PayloadType: "transaction", Transaction: openzeppelin.FromTransaction(tx), Revision: d.Revision}, nil
}

// transaction returns the transaction as it was at the change.
func (d *delivery) transaction() (*relayer.Transaction, error) {
	if d.CreatedAt.IsZero() {
		return nil, errPurged
	}
	if d.Contents != nil {
		if err := json.Unmarshal(d.Contents, &d.TransactionRow); err != nil {
			return nil, fmt.Errorf("read contents: %w", err)
		}
	}
	return d.Transaction(), nil
}
