package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/api/openzeppelin"
)

// A status includes these parts unless the request declines them.
const (
	includeBalance       = "include_balance"
	includePending       = "include_pending_count"
	includeLastConfirmed = "include_last_confirmed_tx"
)

func (e *exchange) relayerID() string { return e.r.PathValue("relayer_id") }

func (h *Handler) relayers(ctx context.Context, c *exchange) error {
	p, err := c.page()
	if err != nil {
		return err
	}
	list, total, err := h.service.Relayers(ctx, p.offset(), p.limit())
	if err != nil {
		return err
	}
	data := make([]openzeppelin.Relayer, len(list))
	for i := range list {
		data[i] = openzeppelin.FromRelayer(&list[i])
	}
	return c.ok(listed(data, p, total))
}

func (h *Handler) relayer(ctx context.Context, c *exchange) error {
	r, err := h.service.Relayer(ctx, c.relayerID())
	if err != nil {
		return err
	}
	return c.ok(openzeppelin.OK(openzeppelin.FromRelayer(&r)))
}

func (h *Handler) update(ctx context.Context, c *exchange) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	patch, err := openzeppelin.DecodePatch(body)
	if err != nil {
		return err
	}
	r, err := h.service.Update(ctx, c.relayerID(), c.caller, patch)
	if err != nil {
		return err
	}
	return c.ok(openzeppelin.OK(openzeppelin.FromRelayer(&r)))
}

func (h *Handler) status(ctx context.Context, c *exchange) error {
	var want relayer.StatusParts
	query, err := c.query()
	if err != nil {
		return err
	}
	for name, part := range map[string]*bool{
		includeBalance: &want.Balance, includePending: &want.Pending, includeLastConfirmed: &want.LastConfirmed,
	} {
		switch given := query[name]; {
		case len(given) == 0:
			*part = true
		case len(given) > 1 || given[0] != "true" && given[0] != "false":
			return relayer.Invalidf(name, "must be true or false, once")
		default:
			*part = given[0] == "true"
		}
	}
	s, err := h.service.Status(ctx, c.relayerID(), want)
	if err != nil {
		return err
	}
	out := openzeppelin.Status{
		NetworkType: openzeppelin.NetworkType, SystemDisabled: s.Disabled, Paused: s.Paused, Nonce: strconv.FormatUint(s.NextNonce, 10),
	}
	if want.Balance {
		out.Balance = new(s.Balance.String())
	}
	if want.Pending {
		out.PendingTransactionsCount = &s.Pending
	}
	if want.LastConfirmed {
		out.LastConfirmedTransaction = new(openzeppelin.TimeOrNull(s.LastConfirmed))
	}
	return c.ok(openzeppelin.OK(out))
}

func (h *Handler) balance(ctx context.Context, c *exchange) error {
	if err := h.limit(c.caller, 1); err != nil { // the call queries nodes
		return err
	}
	b, err := h.service.Balance(ctx, c.relayerID())
	if err != nil {
		return err
	}
	return c.ok(openzeppelin.OK(openzeppelin.Balance{Balance: b, Unit: "wei"}))
}

func (h *Handler) sign(ctx context.Context, c *exchange) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	message, err := openzeppelin.DecodeSign(body)
	if err != nil {
		return err
	}
	if err := h.limit(c.caller, 1); err != nil {
		return err
	}
	sig, err := h.service.Sign(ctx, c.relayerID(), c.caller, []byte(message))
	if err != nil {
		return err
	}
	return c.ok(openzeppelin.OK(openzeppelin.NewSignature(sig)))
}

func (h *Handler) signTypedData(ctx context.Context, c *exchange) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	domain, data, err := openzeppelin.DecodeSignTypedData(body)
	if err != nil {
		return err
	}
	if err := h.limit(c.caller, 1); err != nil {
		return err
	}
	sig, err := h.service.SignTypedData(ctx, c.relayerID(), c.caller, domain, data)
	if err != nil {
		return err
	}
	return c.ok(openzeppelin.OK(openzeppelin.NewSignature(sig)))
}

func (h *Handler) alive(_ context.Context, c *exchange) error {
	c.Header()["Content-Type"] = textType
	c.write(http.StatusOK, []byte("OK"))
	return nil
}

func (h *Handler) ready(_ context.Context, c *exchange) error {
	health := h.health()
	if health.At.IsZero() {
		health.At = time.Now()
	}
	out := openzeppelin.Readiness{
		Ready: health.Ready, Status: openzeppelin.Healthy, Reason: health.Reason, Timestamp: openzeppelin.Time(health.At),
		Components: make(map[string]openzeppelin.Component, len(health.Components)),
	}
	for _, part := range health.Components {
		status := openzeppelin.Healthy
		if part.Problem != "" {
			status = openzeppelin.Unhealthy
			if part.Degraded {
				status = openzeppelin.Degraded
			}
			out.Status = openzeppelin.Degraded
		}
		out.Components[part.Name] = openzeppelin.Component{Status: status, Error: part.Problem, Info: part.Info}
	}
	code := http.StatusOK
	if !out.Ready {
		out.Status, code = openzeppelin.Unhealthy, http.StatusServiceUnavailable
	}
	c.answer(code, out)
	return nil
}

func (h *Handler) description(_ context.Context, c *exchange) error {
	c.write(http.StatusOK, h.openAPI)
	return nil
}

// query returns the request's query. A malformed query is an error, because parameters dropped from it would be missing
// silently. Unknown parameters are ignored, as OpenZeppelin's (v1.8) ignores them: its PaginationQuery and StatusQuery are
// read by actix's web::Query without deny_unknown_fields.
func (e *exchange) query() (url.Values, error) {
	query, err := url.ParseQuery(e.r.URL.RawQuery)
	if err != nil {
		return nil, relayer.Invalidf("", "the query string is malformed: %s", clip(err.Error(), 200))
	}
	return query, nil
}

// paging is a page of a list.
type paging struct{ number, size uint32 }

const (
	defaultPerPage = 10
	maxPerPage     = 100 // a transaction may have 127 KiB of data
	maxPage        = 100_000
	maxOffset      = 100_000 // the rows before a page are read and counted
)

func (p paging) offset() int { return int(p.number-1) * int(p.size) }
func (p paging) limit() int  { return int(p.size) }

func (e *exchange) page() (p paging, err error) {
	query, err := e.query()
	if err != nil {
		return p, err
	}
	number := func(name string, value, most uint32) uint32 {
		switch given := query[name]; {
		case len(given) > 1:
			err = errors.Join(err, relayer.Invalidf(name, "is there twice"))
		case len(given) == 1 && given[0] != "":
			n, parseErr := strconv.ParseUint(given[0], 10, 32)
			if parseErr != nil || n < 1 || n > uint64(most) {
				err = errors.Join(err, relayer.Invalidf(name, "must be a number from 1 to %d", most))
			}
			return uint32(n)
		}
		return value
	}
	p = paging{number: number("page", 1, maxPage), size: number("per_page", defaultPerPage, maxPerPage)}
	if err == nil && p.offset() > maxOffset {
		err = relayer.Invalidf("page", "begins behind the first %d: narrow the list instead", maxOffset)
	}
	return p, err
}

func listed[T any](data []T, p paging, total int) openzeppelin.Envelope[[]T] {
	out := openzeppelin.OK(data)
	out.Pagination = &openzeppelin.Pagination{CurrentPage: p.number, PerPage: p.size, TotalItems: uint64(max(total, 0))}
	return out
}
