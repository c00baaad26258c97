package cli

import (
	"context"
	"fmt"
	"io"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/admin"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// transaction is one, for scripts. Amounts are wei, in decimal digits. Absent values are null.
type Transaction struct {
	ID           string  `json:"id"`
	Status       string  `json:"status"`
	StatusReason string  `json:"statusReason"`
	Intent       string  `json:"intent"` // what its nonce is for: send, cancel, expire, fail
	Kind         string  `json:"kind"`   // transaction, noop, topup, foreign
	Caller       string  `json:"caller"`
	Target       string  `json:"target"` // what it was posted to
	Key          *string `json:"key"`
	Nonce        *uint64 `json:"nonce"`
	Hash         *string `json:"hash"`
	Attempts     int     `json:"attempts"`
	Revision     int     `json:"revision"`

	To             *string `json:"to"` // null: it creates a contract
	Value          string  `json:"value"`
	Data           string  `json:"data"`
	GasLimit       uint64  `json:"gasLimit"`
	Speed          string  `json:"speed"`
	GasPrice       *string `json:"gasPrice"`
	MaxFee         *string `json:"maxFeePerGas"`
	MaxPriorityFee *string `json:"maxPriorityFeePerGas"`
	ValidUntil     *string `json:"validUntil"`

	Method    string `json:"method"`
	Orderbook string `json:"orderbook"`
	Trader    string `json:"trader"`
	RequestID string `json:"requestId"`
	TraceID   string `json:"traceId"`

	BlockNumber       *uint64 `json:"blockNumber"`
	BlockHash         *string `json:"blockHash"`
	GasUsed           *uint64 `json:"gasUsed"`
	EffectiveGasPrice *string `json:"effectiveGasPrice"`

	CreatedAt   string  `json:"createdAt"`
	UpdatedAt   string  `json:"updatedAt"`
	SentAt      *string `json:"sentAt"`
	MinedAt     *string `json:"minedAt"`
	ConfirmedAt *string `json:"confirmedAt"`

	created time.Time
}

func transactionOf(t *relayer.Transaction) Transaction {
	m := t.Metadata
	out := Transaction{
		ID: t.ID.String(), Status: string(t.Status), StatusReason: t.StatusReason, Intent: string(t.Intent), Kind: string(t.Kind),
		Caller: t.Caller, Target: t.Target, Nonce: t.Nonce, Attempts: t.Attempts, Revision: t.Revision,
		Value: "0", Data: hexutil.Encode(t.Data), GasLimit: t.GasLimit, Speed: string(t.Speed),
		GasPrice: wei(t.GasPrice), MaxFee: wei(t.MaxFee), MaxPriorityFee: wei(t.MaxPriorityFee), ValidUntil: instant(t.ValidUntil),
		Method: m.Method, Orderbook: m.Orderbook, Trader: m.Trader, RequestID: m.RequestID, TraceID: m.TraceID,
		EffectiveGasPrice: wei(t.EffectiveGasPrice),
		CreatedAt:         timefmt.Format(t.CreatedAt), UpdatedAt: timefmt.Format(t.UpdatedAt),
		SentAt: instant(t.SentAt), MinedAt: instant(t.MinedAt), ConfirmedAt: instant(t.ConfirmedAt), created: t.CreatedAt,
	}
	if t.Value != nil {
		out.Value = t.Value.String()
	}
	if t.From != (common.Address{}) {
		out.Key = new(lower(t.From))
	}
	if t.To != nil {
		out.To = new(lower(*t.To))
	}
	if t.Hash != nil {
		out.Hash = new(t.Hash.Hex())
	}
	if t.BlockHash != (common.Hash{}) {
		out.BlockNumber, out.BlockHash = new(t.BlockNumber), new(t.BlockHash.Hex())
	}
	if t.GasUsed > 0 {
		out.GasUsed = new(t.GasUsed)
	}
	return out
}

// lower is an address as it is stored, and shown everywhere.
func lower(a common.Address) string { return strings.ToLower(a.Hex()) }

func wei(n *big.Int) *string {
	if n == nil {
		return nil
	}
	return new(n.String())
}

func instant(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	return new(timefmt.Format(t))
}

// text is what stands behind a pointer; "" where nothing does.
func text[T any](p *T) string {
	if p == nil {
		return ""
	}
	return fmt.Sprint(*p)
}

// state is the status, and where it is going.
func (t *Transaction) state() string {
	if t.Intent == string(relayer.IntentSend) || relayer.Status(t.Status).Final() {
		return t.Status
	}
	return fmt.Sprintf("%s (%s)", t.Status, t.Intent)
}

func (t *Transaction) row() []string {
	hash := text(t.Hash)
	if len(hash) > 12 {
		hash = hash[:10] + "…"
	}
	return []string{t.ID, t.state(), text(t.Key), text(t.Nonce), hash, age(t.created), t.Method, t.Trader, strconv.Itoa(t.Attempts)}
}

// history is a transaction with everything that was done about it, for scripts.
type History struct {
	Transaction
	IntentReason string     `json:"intentReason"`
	BumpAskedAt  *string    `json:"bumpAskedAt"`
	Signed       []Attempt  `json:"signed"`
	Webhooks     []Delivery `json:"webhooks"`
}

// attempt is a signed transaction, for scripts. Its bytes are not shown: they can be sent by whoever has them.
type Attempt struct {
	Number         int     `json:"number"`
	Purpose        string  `json:"purpose"` // send, replace, noop
	Key            string  `json:"key"`
	Nonce          uint64  `json:"nonce"`
	Hash           string  `json:"hash"`
	MaxFee         string  `json:"maxFeePerGas"` // or the gas price of one of the old kind
	MaxPriorityFee *string `json:"maxPriorityFeePerGas"`
	CreatedAt      string  `json:"createdAt"`
	LastError      string  `json:"lastError"`
}

// delivery is a webhook to one target, for scripts.
type Delivery struct {
	ID          string  `json:"id"`
	Transaction *string `json:"transaction"`
	Target      string  `json:"target"`
	Event       string  `json:"event"`
	Revision    int     `json:"revision"`
	State       string  `json:"state"` // due, delivered, dead_letter
	Attempts    int     `json:"attempts"`
	NextAt      *string `json:"nextAt"` // of one that is due
	CreatedAt   string  `json:"createdAt"`
	DeliveredAt *string `json:"deliveredAt"`
	LastError   string  `json:"lastError"`
}

func deliveryOf(d webhook.Delivery) Delivery {
	out := Delivery{
		ID: d.ID.String(), Target: d.Target, Event: d.Event, Revision: d.Revision, State: string(d.State), Attempts: d.Attempts,
		CreatedAt: timefmt.Format(d.CreatedAt), LastError: d.LastError,
	}
	if d.Transaction != nil {
		out.Transaction = new(d.Transaction.String())
	}
	if d.State == webhook.Due {
		out.NextAt = instant(d.NextAt)
	}
	if d.DeliveredAt != nil {
		out.DeliveredAt = instant(*d.DeliveredAt)
	}
	return out
}

func readHistory(ctx context.Context, a *admin.Admin, tx *relayer.Transaction) (History, error) {
	h := History{Transaction: transactionOf(tx), Signed: []Attempt{}, Webhooks: []Delivery{}}
	wish, err := a.Store.BumpRequestOf(ctx, tx.ID)
	if err != nil {
		return h, err
	}
	h.IntentReason, h.BumpAskedAt = wish.IntentReason, instant(wish.BumpAskedAt)
	attempts, err := a.Store.Attempts(ctx, tx.ID)
	if err != nil {
		return h, err
	}
	for _, s := range attempts {
		h.Signed = append(h.Signed, Attempt{
			Number: s.Number, Purpose: string(s.Purpose), Key: lower(s.From), Nonce: s.Nonce, Hash: s.Hash.Hex(), MaxFee: s.MaxFee.String(),
			MaxPriorityFee: wei(s.MaxPriorityFee), CreatedAt: timefmt.Format(s.CreatedAt), LastError: s.LastError,
		})
	}
	for filter := (webhook.Filter{Transaction: tx.ID, Limit: 1000}); ; {
		page, err := a.Outbox.List(ctx, filter)
		if err != nil {
			return h, err
		}
		for _, d := range page {
			h.Webhooks = append(h.Webhooks, deliveryOf(d))
		}
		if len(page) < filter.Limit {
			return h, nil
		}
		filter.After = &page[len(page)-1]
	}
}

// shownData is how much of a transaction's data a person is shown.
const shownData = 64

func (h *History) table(w io.Writer) {
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-11s %s\n", name, strings.Map(printable, value))
		}
	}
	line("id", h.ID)
	line("status", h.state())
	line("reason", h.StatusReason)
	line("intent", h.IntentReason)
	if h.Kind != string(relayer.KindTransaction) {
		line("kind", h.Kind)
	}
	line("key", text(h.Key))
	line("nonce", text(h.Nonce))
	line("hash", text(h.Hash))
	line("caller", h.Caller)
	line("posted to", h.Target)
	line("to", text(h.To))
	line("value", h.Value+" wei")
	if data := h.Data; len(data) > shownData {
		line("data", fmt.Sprintf("%s… (%d bytes)", data[:shownData], (len(data)-2)/2))
	} else {
		line("data", data)
	}
	line("gas limit", strconv.FormatUint(h.GasLimit, 10))
	line("speed", h.Speed)
	for _, fee := range []struct {
		name string
		wei  *string
	}{{"gas price", h.GasPrice}, {"max fee", h.MaxFee}, {"max tip", h.MaxPriorityFee}} {
		if fee.wei != nil {
			line(fee.name, *fee.wei+" wei")
		}
	}
	line("valid until", text(h.ValidUntil))
	line("method", h.Method)
	line("orderbook", h.Orderbook)
	line("trader", h.Trader)
	line("request", h.RequestID)
	line("trace", h.TraceID)
	line("created", h.CreatedAt)
	line("sent", text(h.SentAt))
	line("bump asked", text(h.BumpAskedAt))
	if h.BlockNumber != nil {
		line("block", fmt.Sprintf("%d %s", *h.BlockNumber, text(h.BlockHash)))
	}
	line("mined", text(h.MinedAt))
	if h.GasUsed != nil {
		line("gas used", fmt.Sprintf("%d at %s wei", *h.GasUsed, text(h.EffectiveGasPrice)))
	}
	line("confirmed", text(h.ConfirmedAt))
	if len(h.Signed) > 0 {
		var rows [][]string
		for _, s := range h.Signed {
			rows = append(rows, []string{
				strconv.Itoa(s.Number), s.Purpose, s.Hash, strconv.FormatUint(s.Nonce, 10), s.MaxFee, text(s.MaxPriorityFee), s.CreatedAt, s.LastError,
			})
		}
		fmt.Fprintln(w)
		table(w, "ATTEMPT PURPOSE HASH NONCE MAX-FEE TIP SIGNED ERROR", rows)
	}
	if len(h.Webhooks) > 0 {
		fmt.Fprintln(w)
		deliveries(w, h.Webhooks)
	}
}

// deliveries prints webhooks in a table.
func deliveries(w io.Writer, all []Delivery) {
	var rows [][]string
	for _, d := range all {
		rows = append(rows, []string{
			d.ID, d.Target, text(d.Transaction), strconv.Itoa(d.Revision), d.State, strconv.Itoa(d.Attempts), d.CreatedAt, d.LastError,
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
