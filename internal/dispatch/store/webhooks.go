package store

import "github.com/rollcall-dev/rollcall/internal/webhook"

// Webhooks returns the Source of the clients' webhooks, which the store's statements write. A delivery's target is the
// client's name.
func Webhooks() webhook.Source { return webhook.PlainSource("relay_deliveries", "transaction_update") }
