package store

import (
	"encoding/json"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// EventTransaction is the event of all webhooks.
const EventTransaction = "transaction_update"

// Webhooks returns the source of the webhooks that report the changes of transactions to clients. The target of a change is its
// client. A row holds the complete payload, so a late or replayed webhook does not depend on later changes.
func Webhooks() webhook.Source {
	return webhook.Source{
		Table:       outbox.Table{Name: "relay_webhooks", KeepDone: true},
		Event:       "'" + EventTransaction + "'",
		Transaction: "e.about",
		Read:        func(w outbox.Work) (string, any, error) { return EventTransaction, json.RawMessage(w.Payload), nil },
	}
}
