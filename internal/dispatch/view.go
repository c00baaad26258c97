package dispatch

import (
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// Summary is a transaction in the answer to its request, as JSON. [View] begins with it.
type Summary struct {
	TransactionID string       `json:"transactionId"`
	Hash          *common.Hash `json:"hash"`
	Status        Status       `json:"status"`
	CreatedAt     string       `json:"createdAt"`
}

// View is the state of a transaction as its client reads it, as JSON: the payload of a webhook, and a part of the answer to a request for
// the status.
type View struct {
	Summary
	Reason    string `json:"reason"`
	Revision  int    `json:"revision"`
	UpdatedAt string `json:"updatedAt"`
}

// Summary returns the transaction for the answer to its request.
func (t *Transaction) Summary() Summary {
	return Summary{TransactionID: t.PublicID(), Hash: t.Hash, Status: t.Status, CreatedAt: Timestamp(t.CreatedAt)}
}

// View returns the state of the transaction for its client.
func (t *Transaction) View() View {
	return View{Summary: t.Summary(), Reason: t.Reason, Revision: t.Revision, UpdatedAt: Timestamp(t.UpdatedAt)}
}

// Timestamp returns a time as clients read it: in UTC, to the millisecond.
func Timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
