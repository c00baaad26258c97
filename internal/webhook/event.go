package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
)

// The events, with OpenZeppelin's names.
const (
	EventTransaction  = "transaction_update"
	EventRelayerState = "relayer_state_update"
)

// Body is the body of a webhook.
type Body[P any] struct {
	ID        string `json:"id"` // the delivery's: the same in each attempt
	Event     string `json:"event"`
	Payload   P      `json:"payload"`
	Timestamp string `json:"timestamp"` // of the attempt
}

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

// errPurged is why a replayed delivery becomes a dead letter if its transaction has been deleted.
var errPurged = errors.New("its transaction was deleted because of its age")

// transaction returns the transaction as it was at the change.
func (c *claim) transaction() (*relayer.Transaction, error) {
	if c.CreatedAt.IsZero() {
		return nil, errPurged
	}
	if c.Contents != nil {
		if err := json.Unmarshal(c.Contents, &c.TransactionRow); err != nil {
			return nil, fmt.Errorf("read contents: %w", err)
		}
	}
	return c.Transaction(), nil
}

// body returns the body to send for a claim at a time.
func (c *claim) body(at time.Time) ([]byte, error) {
	var payload any = c.Payload
	event := EventRelayerState
	if c.Payload == nil {
		tx, err := c.transaction()
		if err != nil {
			return nil, err
		}
		event, payload = EventTransaction, TransactionUpdate{PayloadType: "transaction", Transaction: openzeppelin.FromTransaction(tx), Revision: c.Revision}
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(Body[any]{ID: c.Delivery.String(), Event: event, Payload: payload, Timestamp: openzeppelin.Time(at)}); err != nil {
		return nil, fmt.Errorf("write body: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}
