package store

import (
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// EventTransaction is the event of all webhooks.
const EventTransaction = "transaction_update"

// webhooks is the table of the webhooks of clients. A row holds the change that it reports, so that a late or replayed webhook depends on
// no later change.
var webhooks = outbox.Table{
	Name:     "relay_webhooks",
	KeepDone: true,
	Columns:  `e.transaction_id, e.status, e.status_reason, e.revision, e.tx_hash, e.accepted_at, e.changed_at`,
	Scan: func(r pgx.CollectableRow) (any, error) {
		return pgx.RowToAddrOfStructByName[reported](postgres.Sparse{CollectableRow: r})
	},
}

// reported is a change of a transaction as the columns of webhooks select it.
type reported struct {
	TransactionID string          `db:"transaction_id"`
	Status        dispatch.Status `db:"status"`
	Reason        string          `db:"status_reason"`
	Revision      int             `db:"revision"`
	Hash          *common.Hash    `db:"tx_hash"`
	AcceptedAt    time.Time       `db:"accepted_at"`
	ChangedAt     time.Time       `db:"changed_at"`
}

// Webhooks returns the source of the webhooks that report the changes of transactions to clients. The target of a change is its
// client.
func Webhooks() webhook.Source {
	return webhook.Source{
		Table: webhooks,
		Read: func(w outbox.Work) (string, any, error) {
			r := w.Data.(*reported)
			tx := &dispatch.Transaction{
				ClientID: r.TransactionID, Status: r.Status, Reason: r.Reason, Revision: r.Revision, Hash: r.Hash,
				CreatedAt: r.AcceptedAt, UpdatedAt: r.ChangedAt,
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
