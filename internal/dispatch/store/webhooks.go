package store

import (
	"encoding/json"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// EventTransaction is the event of all webhooks.
const EventTransaction = "transaction_update"

// Webhooks returns the source of the webhooks that report the changes of transactions to clients. The target of a change is its
// client. A row holds the complete payload, so a late or replayed webhook does not depend on later changes.
func Webhooks() webhook.Source {
	return webhook.Source{
		Table: outbox.Table{Name: "relay_webhooks", KeepDone: true},
		Read:  func(w outbox.Work) (string, any, error) { return EventTransaction, json.RawMessage(w.Payload), nil },
	}
}

// WebhookLetters returns these webhooks as operators see them.
func WebhookLetters() deadletter.Source {
	return deadletter.Source{
		Of: "client-webhooks", Table: Webhooks().Table,
		Transaction: `e.about::text`, OfTransaction: `e.about = $1`, Event: `'` + EventTransaction + `'`, Revision: `e.revision`,
	}
}
