package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

// errBadSignature is the answer to each webhook without a valid signature: it does not say which check failed.
var errBadSignature = &statusError{http.StatusUnauthorized, "unauthorized", "the webhook has no valid signature"}

// received is the answer to a valid webhook.
type received struct {
	// Known reports that a transaction has the relayer's id. Otherwise the report is kept until one has it.
	Known bool `json:"known"`
	// Changed reports that the transaction changed; it is false for a repeated or late report.
	Changed bool `json:"changed"`
}

// webhook receives a report of a relayer.
func (h *Handler) webhook(ctx context.Context, c *call) error {
	body, signedAt, err := h.verified(ctx, c)
	if errors.Is(err, errBadSignature) {
		h.metrics.webhooks.WithLabelValues("refused").Inc()
		return err
	}
	if err != nil {
		h.metrics.webhooks.WithLabelValues("unread").Inc()
		h.log.WarnContext(ctx, "webhook not read", "limit", h.unverified.most, "size", c.r.ContentLength, "err", err)
		return err
	}
	report, ok, err := parseReport(body)
	if err != nil {
		h.metrics.webhooks.WithLabelValues("invalid").Inc()
		h.log.WarnContext(ctx, "webhook cannot be read: its signature is valid", "err", err)
		return err
	}
	if !ok { // of a relayer, not of a transaction
		h.metrics.webhooks.WithLabelValues("other").Inc()
		answer(c.w, http.StatusOK, received{})
		return nil
	}
	if report.At.IsZero() {
		report.At = signedAt
	}
	applied, err := c.reports.Do(ctx, report)
	if err != nil {
		h.metrics.webhooks.WithLabelValues("failed").Inc()
		return fmt.Errorf("%w: %w", dispatch.ErrUnavailable, err) // a repeated report is harmless
	}
	r := received{Known: applied.ID != uuid.Nil, Changed: applied.Changed}
	h.metrics.webhooks.WithLabelValues(result(r)).Inc()
	answer(c.w, http.StatusOK, r)
	return nil
}

// verified reads a webhook's body and verifies its signature. Without a signature, it does not read the body. It returns the time that
// was signed, by the relayer's clock.
func (h *Handler) verified(ctx context.Context, c *call) (body []byte, at time.Time, err error) {
	if !signature.Given(c.r.Header) {
		return nil, at, errBadSignature
	}
	body, release, err := h.unverified.read(ctx, c.w, c.r)
	if err != nil {
		return nil, at, err
	}
	defer release()
	v, err := signature.Verify(h.cfg.Secrets, c.r.Header, body, time.Now(), 0)
	if errors.Is(err, signature.ErrTime) && h.isNew(ctx, c, body, v.At) {
		err = nil
	}
	if err != nil {
		h.refuse(ctx, c, body, err)
		return nil, at, errBadSignature
	}
	return body, v.At, nil
}

// result is the value of a metric.
func result(r received) string {
	switch {
	case r.Changed:
		return "applied"
	case r.Known:
		return "repeated"
	default:
		return "kept"
	}
}

// report is a webhook's body in either dialect: OpenZeppelin Relayer's, with the transaction in payload, and the flat one of
// older documents.
type report struct {
	Event     string     `json:"event"`
	Timestamp *time.Time `json:"timestamp"`
	Payload   *struct {
		Type     string  `json:"payload_type"`
		ID       string  `json:"id"`
		Hash     *string `json:"hash"`
		Status   string  `json:"status"`
		Reason   *string `json:"status_reason"`
		Revision int     `json:"revision"`
		upstream.Effect
	} `json:"payload"`

	// The flat dialect.
	RelayerTx string  `json:"ozRelayerTxId"`
	Hash      *string `json:"hash"`
	TxHash    *string `json:"transactionHash"`
	Status    string  `json:"status"`
	Reason    *string `json:"error"`
}

// parseReport reads the report of a transaction. ok is false if the webhook reports something else.
func parseReport(body []byte) (u dispatch.Update, ok bool, err error) {
	var r report
	if err := json.Unmarshal(body, &r); err != nil {
		return u, false, invalidJSON(err)
	}
	var hash, reason *string
	status := ""
	switch {
	case r.Payload != nil:
		if r.Payload.Type != "" && r.Payload.Type != "transaction" {
			return u, false, nil
		}
		u.RelayerTx, u.Revision = r.Payload.ID, r.Payload.Revision
		hash, reason, status = r.Payload.Hash, r.Payload.Reason, r.Payload.Status
		if to, data, value, complete := r.Payload.Call(); complete {
			u.Call = &dispatch.Call{To: *to, Value: value, Data: data}
		}
	case r.RelayerTx != "":
		u.RelayerTx = r.RelayerTx
		hash, reason = r.Hash, r.Reason
		if hash == nil {
			hash = r.TxHash
		}
		if status = r.Status; status == "" {
			status = strings.TrimPrefix(r.Event, "transaction_")
		}
	default:
		return u, false, nil
	}
	if !upstream.ValidID(u.RelayerTx) {
		return u, false, dispatch.Invalidf("id", "must be the relayer's id of the transaction")
	}
	if u.Revision < 0 || u.Revision > 1<<30 {
		return u, false, dispatch.Invalidf("revision", "must be a number from 0")
	}
	var known bool
	if u.Status, known = dispatch.StatusAt(status); !known {
		return u, false, dispatch.Invalidf("status", "is none of a relayer's statuses")
	}
	if hash != nil && *hash != "" {
		var h common.Hash
		if err := h.UnmarshalText([]byte(*hash)); err != nil {
			return u, false, dispatch.Invalidf("hash", "must be 0x and 64 hex digits")
		}
		u.Hash = &h
	}
	if reason != nil {
		u.Reason = *reason
	}
	if r.Timestamp != nil {
		u.At = *r.Timestamp
	}
	return u, true, nil
}

// invalidJSON names the member of the body that cannot be read, where the decoder says it.
func invalidJSON(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return dispatch.Invalidf(wrong.Field, "must not be a JSON %s", wrong.Value)
	}
	if _, ok := errors.AsType[*json.SyntaxError](err); ok || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return dispatch.Invalidf("", "the body must be a JSON object")
	}
	return dispatch.Invalidf("", "%s", strings.TrimPrefix(err.Error(), "json: "))
}
