package publish

import (
	"encoding/json"

	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// EventMessage is the event of all webhooks of the monitor.
const EventMessage = "escrow_event"

// WebhookTarget returns the target of the messages for a webhook, as [store.Config] names it.
func WebhookTarget(name string) string { return "webhook/" + name }

// Webhooks returns the source of the webhooks that carry the messages of a chain. The payload of a webhook is the message. A target that
// refuses a message for longer than webhook.Config.RetryFor holds back the later ones of the escrow, until an operator replays or drops
// it. With a total, the process sends the messages of the partitions with partition mod total = number alone. m counts those that were
// accepted.
func Webhooks(chain uint64, total, number int, m *Metrics) webhook.Source {
	return webhook.Source{
		Table: store.Outbox, Prefix: store.Lane(chain, WebhookTarget("")), Held: store.Halted, Partitions: total, Partition: number,
		Delivered: func(outbox.Work) { m.published.Inc() },
		Read:      func(w outbox.Work) (string, any, error) { return EventMessage, json.RawMessage(w.Payload), nil },
	}
}
