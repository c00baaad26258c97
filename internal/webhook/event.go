package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// Body is the body of a webhook.
type Body[P any] struct {
	ID        string `json:"id"` // the delivery's: the same in each attempt
	Event     string `json:"event"`
	Payload   P      `json:"payload"`
	Timestamp string `json:"timestamp"` // of the attempt
}

// timestampLayout is OpenZeppelin's, in UTC.
const timestampLayout = "2006-01-02T15:04:05.000000Z"

// newBody returns the body to send at a time.
func newBody(id, event string, payload any, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(Body[any]{ID: id, Event: event, Payload: payload, Timestamp: at.UTC().Format(timestampLayout)}); err != nil {
		return nil, fmt.Errorf("write body: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}
