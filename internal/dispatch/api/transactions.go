package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/platform/batch"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
)

// direct accepts the client's own call.
func (h *Handler) direct(ctx context.Context, c *call) error {
	var body directRequest
	if err := decode(c.w, c.r, body.field); err != nil {
		return err
	}
	tx, err := body.transaction()
	if err == nil {
		err = c.checkChain(ctx, body.chainID)
	}
	if err != nil {
		return err
	}
	if err := identify(tx, c.client, c.r.Header); err != nil {
		return err
	}
	if limited := h.admit(c.client); limited != nil {
		// A repetition is answered nevertheless: the client must learn the outcome of a request that was answered 504.
		found, err := c.store.Repeated(ctx, tx)
		if errors.Is(err, dispatch.ErrNotFound) {
			return limited
		}
		if err == nil {
			answer(c.w, http.StatusAccepted, found.Summary())
		}
		return err
	}
	return h.store(ctx, c, tx)
}

// store stores and queues a transaction that was admitted, and answers 202.
func (h *Handler) store(ctx context.Context, c *call, tx *dispatch.Transaction) error {
	tx.Traceparent = tracing.Inject(ctx)
	trace.SpanFromContext(ctx).SetAttributes(attribute.String("rollcall.transaction", tx.ID.String()))
	result, err := c.accepts.Do(ctx, tx)
	switch {
	case errors.Is(err, batch.ErrUnknown), postgres.Uncertain(err):
		return fmt.Errorf("%w: %w", dispatch.ErrUnknown, err)
	case err != nil:
		return fmt.Errorf("%w: %w", dispatch.ErrUnavailable, err)
	case result.Err != nil:
		return result.Err
	}
	h.cfg.Stored()
	answer(c.w, http.StatusAccepted, result.Transaction.Summary())
	return nil
}

// status answers one transaction.
func (h *Handler) status(ctx context.Context, c *call) error {
	id := c.r.PathValue("id")
	if cached := h.cfg.Cache.Get(ctx, c.client, id); cached != nil {
		write(c.w, http.StatusOK, cached)
		return nil
	}
	read := time.Now()
	tx, err := c.store.Get(ctx, c.client, id)
	if err != nil {
		return err
	}
	chain, err := c.shownChain(ctx)
	if err != nil {
		return err
	}
	body := encode(viewOf(tx, chain))
	h.cfg.Cache.Put(ctx, c.client, id, tx, read, body)
	write(c.w, http.StatusOK, body)
	return nil
}

// page is a list of transactions, the newest first.
type page struct {
	Transactions []view `json:"transactions"`
	// Next is the parameter before of the next page; null if this is the last one.
	Next *string `json:"next"`
}

// transactions answers a page of the client's transactions.
func (h *Handler) transactions(ctx context.Context, c *call) error {
	f, err := filter(c)
	if err != nil {
		return err
	}
	leave, err := h.takeList(ctx)
	if err != nil {
		return err
	}
	defer leave()
	want := f.Limit
	f.Limit++ // the one more tells whether there is another page
	found, err := c.store.List(ctx, f)
	if err != nil {
		return err
	}
	p := page{Transactions: []view{}}
	if len(found) > want {
		found = found[:want]
		p.Next = new(found[want-1].ID.String())
	}
	chain, err := c.shownChain(ctx)
	if err != nil {
		return err
	}
	for _, tx := range found {
		p.Transactions = append(p.Transactions, viewOf(tx, chain))
	}
	h.answerList(c.w, p)
	return nil
}

// maxPage is the most transactions of a page.
const maxPage = 100

func filter(c *call) (f store.Filter, err error) {
	f = store.Filter{Client: c.client, Limit: 20}
	for name, values := range c.r.URL.Query() {
		value := values[0]
		if len(values) > 1 {
			return f, dispatch.Invalidf(name, "is there twice")
		}
		switch name {
		case "status":
			for one := range strings.SplitSeq(value, ",") {
				if !dispatch.Status(one).Valid() {
					return f, dispatch.Invalidf(name, "%q is none of %v", one, dispatch.Statuses)
				}
				f.Statuses = append(f.Statuses, dispatch.Status(one))
			}
		case "kind":
			if f.Kind = dispatch.Kind(value); f.Kind != dispatch.Direct && f.Kind != dispatch.Gasless {
				return f, dispatch.Invalidf(name, "must be direct or gasless")
			}
		case "limit":
			if f.Limit, err = strconv.Atoi(value); err != nil || f.Limit < 1 || f.Limit > maxPage {
				return f, dispatch.Invalidf(name, "must be 1 to %d", maxPage)
			}
		case "before":
			if f.Before, err = uuid.Parse(value); err != nil {
				return f, dispatch.Invalidf(name, "must be the next of a page")
			}
		default:
			return f, dispatch.Invalidf(name, "there is no such parameter: there are status, kind, limit and before")
		}
	}
	return f, nil
}
