package store

import (
	"errors"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// EventTransaction is the event of all webhooks.
const EventTransaction = "transaction_update"

// webhooks is the table of the webhooks of clients. A claim reads the change that a webhook reports from the history, which
// [Store.Purge] keeps as long as a webhook of the transaction is not delivered.
var webhooks = outbox.Table{
	Name:     "relay_webhooks",
	KeepDone: true,
	Columns:  `t.id AS tx, t.client_id, t.created_at AS accepted_at, h.status, h.reason AS status_reason, h.tx_hash, h.at, e.revision`,
	Joins: `LEFT JOIN LATERAL (SELECT * FROM relay_transactions WHERE id = e.about LIMIT 1) AS t ON true
		LEFT JOIN LATERAL (SELECT * FROM relay_history WHERE tx = e.about AND revision = e.revision LIMIT 1) AS h ON true`,
	Scan: func(r pgx.CollectableRow) (any, error) {
		return pgx.RowToAddrOfStructByName[reported](postgres.Sparse{CollectableRow: r})
	},
}

// reported is a change of a transaction as the columns of webhooks select it.
type reported struct {
	ID         *uuid.UUID      `db:"tx"` // nil: the transaction was deleted
	ClientID   string          `db:"client_id"`
	AcceptedAt time.Time       `db:"accepted_at"`
	Status     dispatch.Status `db:"status"` // "": the change was deleted
	Reason     string          `db:"status_reason"`
	Hash       *common.Hash    `db:"tx_hash"`
	At         time.Time       `db:"at"`
	Revision   int             `db:"revision"`
}

// errNoChange is the reason of a dead letter. An operator who replays a delivered webhook while its transaction is purged causes it.
var errNoChange = errors.New("the change that it reports was deleted with its transaction")

// Webhooks returns the source of the webhooks that report the changes of transactions to clients. The target of a change is its
// client. The history never changes, so a late or replayed webhook does not depend on later changes.
func Webhooks() webhook.Source {
	return webhook.Source{
		Table: webhooks,
		Read: func(w outbox.Work) (string, any, error) {
			r := w.Data.(*reported)
			if r.ID == nil || r.Status == "" {
				return "", nil, errNoChange
			}
			tx := &dispatch.Transaction{
				ID: *r.ID, ClientID: r.ClientID, Status: r.Status, Reason: r.Reason, Revision: r.Revision, Hash: r.Hash,
				CreatedAt: r.AcceptedAt, UpdatedAt: r.At,
			}
			return EventTransaction, tx.View(), nil
		},
	}
}

// WebhookLetters returns these webhooks as operators see them.
func WebhookLetters() deadletter.Source {
	return deadletter.Source{
		Of: "client-webhooks", Table: webhooks,
		Transaction: `e.about::text`, OfTransaction: `e.about = $1`, Event: `'` + EventTransaction + `'`, Revision: `e.revision`,
	}
}
