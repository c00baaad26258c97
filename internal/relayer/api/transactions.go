package api

import (
	"context"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
)

func (h *Handler) submit(ctx context.Context, c *exchange) error {
	s := relayer.Submission{RelayerID: c.relayerID(), Caller: c.caller}
	var err error
	if s.IdempotencyKey, err = c.idempotencyKey(); err != nil {
		return err
	}
	s.Scope = c.r.Header.Get(idempotencyScope)
	if s.Request, err = c.request(); err != nil {
		return err
	}
	if s.IdempotencyKey != "" {
		s.BodyHash = openzeppelin.CanonicalHash(s.RelayerID, &s.Request)
	}
	tx, err := h.service.Submit(ctx, s)
	return c.tx(tx, err)
}

// idempotencyKey returns the request's key; "" for none.
func (e *exchange) idempotencyKey() (string, error) {
	const longest = 255
	switch keys := e.r.Header[idempotencyKey]; {
	case len(keys) == 0:
		return "", nil
	case len(keys) > 1:
		return "", relayer.Invalidf(idempotencyKey, "is there twice")
	case keys[0] == "" || len(keys[0]) > longest || !apikey.IsVisible(keys[0]):
		return "", relayer.Invalidf(idempotencyKey, "must have 1 to %d visible ASCII characters, no blanks", longest)
	default:
		return keys[0], nil
	}
}

// request reads the transaction from the body. Metadata that the body lacks is read from headers.
func (e *exchange) request() (relayer.Request, error) {
	body, err := e.body()
	if err != nil {
		return relayer.Request{}, err
	}
	r, err := openzeppelin.DecodeRequest(body)
	if err != nil {
		return r, err
	}
	if r.Metadata.RequestID == "" {
		r.Metadata.RequestID = e.requestID
	}
	r.Traceparent = tracing.Inject(e.r.Context())
	if parent := trace.SpanContextFromContext(e.r.Context()); r.Metadata.TraceID == "" && parent.IsValid() {
		r.Metadata.TraceID = parent.TraceID().String()
	}
	return r, nil
}

// tx responds with a transaction.
func (e *exchange) tx(tx *relayer.Transaction, err error) error {
	if err != nil {
		return err
	}
	return e.ok(openzeppelin.OK(openzeppelin.FromTransaction(tx)))
}

func (h *Handler) transactions(ctx context.Context, c *exchange) error {
	p, err := c.page()
	if err != nil {
		return err
	}
	f, err := c.filter()
	if err != nil {
		return err
	}
	leave, err := h.take(ctx, c, h.lists)
	if err != nil {
		return err
	}
	defer leave()
	list, total, err := h.service.Transactions(ctx, c.relayerID(), f, p.offset(), p.limit())
	if err != nil {
		return err
	}
	data := make([]openzeppelin.Transaction, len(list))
	for i, tx := range list {
		data[i] = openzeppelin.FromTransaction(tx)
	}
	return c.ok(listed(data, p, total))
}

func (e *exchange) filter() (relayer.Filter, error) {
	var f relayer.Filter
	query, err := e.query()
	if err != nil {
		return f, err
	}
	for name, target := range map[string]*string{
		"method": &f.Method, "orderbook": &f.Orderbook, "trader": &f.Trader, "request_id": &f.RequestID, "trace_id": &f.TraceID,
	} {
		switch given := query[name]; len(given) {
		case 0:
		case 1:
			if err := openzeppelin.CheckMetadata(name, given[0]); err != nil {
				return f, err
			}
			*target = given[0]
		default:
			return f, relayer.Invalidf(name, "is there twice")
		}
	}
	switch given := query["status"]; {
	case len(given) > 1:
		return f, relayer.Invalidf("status", "is there twice")
	case len(given) == 1 && given[0] != "":
		f.Statuses, f.Signed = relayer.APIStatus(strings.ToLower(given[0])).Stored()
		if len(f.Statuses) == 0 {
			return f, relayer.Invalidf("status",
				"must be pending, sent, submitted, mined, confirmed, failed, canceled or expired, not %q", clip(given[0], 40))
		}
	}
	return f, nil
}

// transactionID returns the path's id. An invalid id is not found, as with OpenZeppelin, where an id can be any string.
func (e *exchange) transactionID() (uuid.UUID, error) {
	const textLen = 36 // without the braces and prefixes that Parse accepts too
	s := e.r.PathValue("transaction_id")
	id, err := uuid.Parse(s)
	if err != nil || len(s) != textLen {
		return id, relayer.ErrNotFound
	}
	return id, nil
}

func (h *Handler) transaction(ctx context.Context, c *exchange) error {
	id, err := c.transactionID()
	if err != nil {
		return err
	}
	tx, err := h.service.Transaction(ctx, c.relayerID(), id)
	return c.tx(tx, err)
}

func (h *Handler) transactionByNonce(ctx context.Context, c *exchange) error {
	nonce, err := strconv.ParseUint(c.r.PathValue("nonce"), 10, 64)
	if err != nil {
		return relayer.Invalidf("nonce", "must be a number below 2^64")
	}
	tx, err := h.service.TransactionByNonce(ctx, c.relayerID(), nonce)
	return c.tx(tx, err)
}

func (h *Handler) replace(ctx context.Context, c *exchange) error {
	id, err := c.transactionID()
	if err != nil {
		return err
	}
	body, err := c.body()
	if err != nil {
		return err
	}
	r, err := openzeppelin.DecodeReplacement(body) // without the headers' ids, because its metadata does not change
	if err != nil {
		return err
	}
	tx, err := h.service.Replace(ctx, c.relayerID(), id, c.caller, r)
	return c.tx(tx, err)
}

func (h *Handler) cancel(ctx context.Context, c *exchange) error {
	id, err := c.transactionID()
	if err != nil {
		return err
	}
	tx, err := h.service.Cancel(ctx, c.relayerID(), id, c.caller)
	return c.tx(tx, err)
}

func (h *Handler) cancelPending(ctx context.Context, c *exchange) error {
	canceled, err := h.service.CancelPending(ctx, c.relayerID(), c.caller)
	if err != nil {
		return err
	}
	return c.ok(openzeppelin.OK(openzeppelin.CanceledPending{
		Queued: texts(canceled.Queued), Failed: texts(canceled.Failed),
		Total: uint32(len(canceled.Queued) + len(canceled.Failed)),
	}))
}

func texts(ids []uuid.UUID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id.String()
	}
	return out
}
