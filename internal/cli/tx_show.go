package cli

import (
	"fmt"
	"io"
	"math/big"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/admin"
)

// Transaction is one, for scripts.
type Transaction struct{ relayer.TransactionRow }

// lower is an address as it is stored, and shown everywhere.
func lower(a common.Address) string { return strings.ToLower(a.Hex()) }

// text is what stands behind a pointer; "" where nothing does.
func text[T any](p *T) string {
	if p == nil {
		return ""
	}
	return fmt.Sprint(*p)
}

// state is the status, and where it is going.
func (t *Transaction) state() string {
	if t.Intent == relayer.IntentSend || t.Status.Final() {
		return string(t.Status)
	}
	return fmt.Sprintf("%s (%s)", t.Status, t.Intent)
}

func (t *Transaction) row() []string {
	hash := text(t.Hash)
	if len(hash) > 12 {
		hash = hash[:10] + "…"
	}
	return []string{t.ID.String(), t.state(), text(t.Key), text(t.Nonce), hash, age(t.CreatedAt.Time), t.Method, t.Trader, strconv.Itoa(t.Attempts)}
}

// History is a transaction with everything that was done about it, for scripts.
type History struct {
	Transaction
	IntentReason string                `json:"intentReason"`
	BumpAskedAt  relayer.Timestamp     `json:"bumpAskedAt"`
	Signed       []*relayer.AttemptRow `json:"signed"`
	Webhooks     []txWebhook           `json:"webhooks"`
}

func historyOf(r admin.Record) History {
	row := *r.Row()
	h := History{Transaction{row}, row.IntentReason, row.BumpRequestedAt, []*relayer.AttemptRow{}, []txWebhook{}}
	for _, s := range r.Attempts {
		h.Signed = append(h.Signed, s.Row())
	}
	for i := range r.Webhooks {
		h.Webhooks = append(h.Webhooks, txWebhookOf(&r.Webhooks[i]))
	}
	return h
}

// shownData is how much of a transaction's data a person is shown.
const shownData = 64

func (h *History) table(w io.Writer) {
	line := fields(w, 11)
	line("id", h.ID.String())
	line("status", h.state())
	line("reason", h.StatusReason)
	line("intent", h.IntentReason)
	if h.Kind != relayer.KindTransaction {
		line("kind", string(h.Kind))
	}
	line("key", text(h.Key))
	line("nonce", text(h.Nonce))
	line("hash", text(h.Hash))
	line("caller", h.Caller)
	line("posted to", h.Target)
	line("to", text(h.To))
	line("value", h.Value+" wei")
	if data := h.Data.String(); len(data) > shownData {
		line("data", fmt.Sprintf("%s… (%d bytes)", data[:shownData], (len(data)-2)/2))
	} else {
		line("data", data)
	}
	line("gas limit", strconv.FormatUint(h.GasLimit, 10))
	line("speed", string(h.Speed))
	for _, fee := range []struct {
		name string
		wei  *string
	}{{"gas price", h.GasPrice}, {"max fee", h.MaxFee}, {"max tip", h.MaxPriorityFee}} {
		if fee.wei != nil {
			line(fee.name, *fee.wei+" wei")
		}
	}
	line("valid until", h.ValidUntil.String())
	line("method", h.Method)
	line("orderbook", h.Orderbook)
	line("trader", h.Trader)
	line("request", h.RequestID)
	line("trace", h.TraceID)
	line("created", h.CreatedAt.String())
	line("sent", h.SentAt.String())
	line("bump asked", h.BumpAskedAt.String())
	if h.BlockNumber != nil {
		line("block", fmt.Sprintf("%d %s", *h.BlockNumber, text(h.BlockHash)))
	}
	line("mined", h.MinedAt.String())
	if h.GasUsed != nil {
		line("gas used", fmt.Sprintf("%d at %s wei", *h.GasUsed, text(h.EffectiveGasPrice)))
	}
	line("confirmed", h.ConfirmedAt.String())
	if len(h.Signed) > 0 {
		var rows [][]string
		for _, s := range h.Signed {
			rows = append(rows, []string{
				strconv.Itoa(s.Number), string(s.Purpose), s.Hash, strconv.FormatUint(s.Nonce, 10), s.MaxFee, text(s.MaxPriorityFee), s.CreatedAt.String(), s.LastError,
			})
		}
		fmt.Fprintln(w)
		table(w, "ATTEMPT PURPOSE HASH NONCE MAX-FEE TIP SIGNED ERROR", rows)
	}
	if len(h.Webhooks) > 0 {
		fmt.Fprintln(w)
		webhooks(w, h.Webhooks)
	}
}

// txWebhook is a webhook of a transaction, for scripts.
type txWebhook struct {
	ID          string            `json:"id"`
	Transaction string            `json:"transaction"`
	Target      string            `json:"target"`
	Event       string            `json:"event"`
	Revision    int               `json:"revision"`
	State       string            `json:"state"` // due, delivered, dead_letter
	Attempts    int               `json:"attempts"`
	NextAt      timefmt.Timestamp `json:"nextAt"` // of a due one: when it may be tried, or when its claim ends; zero behind a lower revision
	CreatedAt   timefmt.Timestamp `json:"createdAt"`
	DeliveredAt timefmt.Timestamp `json:"deliveredAt"`
	LastError   string            `json:"lastError"`
}

func txWebhookOf(l *deadletter.Letter) txWebhook {
	w := txWebhook{
		ID: l.ID, Transaction: l.Transaction, Target: l.To, Event: l.Event, Revision: l.Revision, Attempts: l.Attempts, NextAt: l.DueAt,
		CreatedAt: l.CreatedAt, LastError: l.Reason,
	}
	switch l.State {
	case outbox.Waiting:
		w.State = "due"
	case outbox.Done:
		w.State, w.DeliveredAt = "delivered", l.SettledAt
	case outbox.Dead:
		w.State = "dead_letter"
	}
	return w
}

// webhooks prints webhooks in a table.
func webhooks(w io.Writer, all []txWebhook) {
	var rows [][]string
	for _, d := range all {
		rows = append(rows, []string{
			d.ID, d.Target, d.Transaction, strconv.Itoa(d.Revision), d.State, strconv.Itoa(d.Attempts), d.CreatedAt.String(), d.LastError,
		})
	}
	table(w, "WEBHOOK TARGET TRANSACTION REVISION STATE TRIES CREATED ERROR", rows)
}

// withUnit returns n with its unit, in wei where ether would show as 0. It is empty for nil.
func withUnit(n *big.Int) string {
	switch {
	case n == nil:
		return ""
	case n.Sign() > 0 && n.Cmp(big.NewInt(1e12)) < 0:
		return n.String() + " wei"
	}
	return ether(n) + " ether"
}

// ether returns wei in ether, with at most six decimals, cut off.
func ether(n *big.Int) string {
	if n == nil {
		return ""
	}
	whole, rest := new(big.Int).QuoRem(n, big.NewInt(1e18), new(big.Int))
	micros := strings.TrimRight(fmt.Sprintf("%06d", rest.Quo(rest, big.NewInt(1e12))), "0")
	if micros == "" {
		return whole.String()
	}
	return whole.String() + "." + micros
}
