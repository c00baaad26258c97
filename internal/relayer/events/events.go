package events

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
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

// lanePrefix precedes a target's name in the lanes of the pool's deliveries.
func (p Pool) lanePrefix() string { return fmt.Sprintf("%d/%s/", p.ChainID, p.ID) }

// table is the table of all pools' deliveries.
var table = outbox.Table{
	Name:     "relayer_webhooks",
	KeepDone: true,
	// The store's statements need not wait for the disk themselves, and a change must be there before its webhook is sent.
	ClaimsWaitForDisk: true,
	Columns:           columns,
	Joins: `LEFT JOIN LATERAL (SELECT * FROM relayer_txs WHERE id = e.about LIMIT 1) AS t ON true
		LEFT JOIN LATERAL (SELECT max_fee, max_priority FROM relayer_attempts
			WHERE tx_hash = '0x' || encode(e.tx_hash, 'hex') AND tx_id = e.about LIMIT 1) AS a ON true`,
	Scan: func(row pgx.CollectableRow) (any, error) {
		return pgx.RowToAddrOfStructByName[delivery](postgres.Sparse{CollectableRow: row})
	},
}

// Source returns the pool's deliveries.
func (p Pool) Source() webhook.Source {
	return webhook.Source{
		Table:  table,
		Prefix: p.lanePrefix(),
		Read: func(w outbox.Work) (string, any, error) {
			if w.Payload != nil {
				return EventRelayerState, json.RawMessage(w.Payload), nil
			}
			d := w.Data.(*delivery)
			tx, err := d.transaction()
			if err != nil {
				return "", nil, err
			}
			return EventTransaction, TransactionUpdate{PayloadType: "transaction", Transaction: openzeppelin.FromTransaction(tx), Revision: d.Revision}, nil
		},
	}
}

// Letters returns the pool's deliveries as operators see them.
func (p Pool) Letters() deadletter.Source {
	s := Letters()
	s.Prefix, s.AnyPrefix = p.lanePrefix(), false
	return s
}

// Letters returns the deliveries of all pools as operators see them. The names of the targets are preceded by chain and pool.
func Letters() deadletter.Source {
	return deadletter.Source{
		Of: "relayer-webhooks", Table: table, AnyPrefix: true,
		Transaction: `CASE WHEN e.payload IS NULL THEN e.about::text END`, OfTransaction: `e.about = $1`,
		Event:    `CASE WHEN e.payload IS NULL THEN '` + EventTransaction + `' ELSE '` + EventRelayerState + `' END`,
		Revision: `e.revision`,
	}
}

// columns are those of a [delivery]: the transaction's, with the values of the change from the delivery's row.
var columns = `e.contents, a.max_fee::text AS offered_fee, a.max_priority::text AS offered_tip, ` +
	relayer.SelectList[relayer.TransactionRow]("t", map[string]string{
		"revision": "e.revision", "status": "e.status", "status_reason": "e.status_reason", "intent": "coalesce(e.intent, 'send')",
		"attempts": "e.tx_attempts", "relayer_address": "'0x' || encode(e.relayer_address, 'hex')", "nonce": "e.nonce",
		"tx_hash": "'0x' || encode(e.tx_hash, 'hex')", "sent_at": "e.sent_at", "confirmed_at": "e.confirmed_at",
	})

// delivery is a claimed row.
type delivery struct {
	Contents json.RawMessage `db:"contents"` // the transaction's contents at the change; nil if the row still has them
	// TransactionRow is the transaction as it was at the change, but for Contents. CreatedAt is zero if the transaction was
	// deleted.
	relayer.TransactionRow
}

// errPurged is why a replayed delivery becomes a dead letter if its transaction has been deleted.
var errPurged = errors.New("its transaction was deleted because of its age")

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
