package api

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

// refusalRate and refusalBurst are how many refused webhooks a second have their relayer looked up, for the log.
const refusalRate, refusalBurst = 1, 5

// refusedWebhooks names the relayers whose webhooks are refused in the log.
type refusedWebhooks struct{ lookups *rate.Limiter }

func newRefusedWebhooks() refusedWebhooks {
	return refusedWebhooks{rate.NewLimiter(refusalRate, refusalBurst)}
}

// senders returns the relayers that may have sent a body.
func (h *Handler) senders(ctx context.Context, c *call, body []byte) []store.Sender {
	report, ok, err := parseReport(body)
	if err != nil || !ok {
		return nil
	}
	senders, err := c.store.Senders(ctx, report.RelayerTx)
	if err != nil {
		h.log.WarnContext(ctx, "the relayer of a webhook cannot be looked up", "err", err)
	}
	return senders
}

// isNew reports whether a webhook is new by the clock of its relayer. Its signature is valid.
func (h *Handler) isNew(ctx context.Context, c *call, body []byte, at time.Time) bool {
	return slices.ContainsFunc(h.senders(ctx, c, body), func(s store.Sender) bool {
		return time.Now().Add(s.Ahead).Sub(at).Abs() <= signature.DefaultTolerance
	})
}

// refuse logs a refused webhook with the relayer that its body names. The process's log omits lines that repeat within a minute.
func (h *Handler) refuse(ctx context.Context, c *call, body []byte, err error) {
	h.log.DebugContext(ctx, "webhook refused", "err", err)
	if !h.refused.lookups.Allow() {
		return
	}
	for _, cause := range []error{signature.ErrTime, signature.ErrMismatch, signature.ErrMissing} {
		if errors.Is(err, cause) {
			err = cause // without what differs each time
		}
	}
	senders := h.senders(ctx, c, body)
	for _, s := range senders {
		h.log.With("service", s.Relayer, "clock_ahead", s.Ahead.Round(time.Second).String()).WarnContext(ctx, "webhooks about transactions of a relayer are refused", "err", err)
	}
	if len(senders) == 0 {
		h.log.WarnContext(ctx, "webhooks are refused that name no known transaction", "err", err)
	}
}
