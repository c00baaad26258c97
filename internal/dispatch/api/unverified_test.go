package api

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/webhook/signature"
)

// serveWebhooks starts a server without a store. A test must not send it a webhook with a valid signature.
func serveWebhooks(t *testing.T, edit func(*Handler)) (*Handler, net.Addr) {
	t.Helper()
	h, err := NewHandler(Config{
		Keys: []apikey.Key{{Name: "shop", Key: shopKey}}, Secrets: []signature.Key{secret(t, newSecret)}, Logger: slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewRegistry(),
	})
	require.NoError(t, err)
	h.Start(large{}, nil)
	edit(h)
	server := httptest.NewServer(h) // without timeouts of its own
	t.Cleanup(server.Close)
	return h, server.Listener.Addr()
}

// sender is a connection that posts a webhook.
type sender struct {
	net.Conn
	answer *bufio.Reader
}

// send sends the head of a webhook with the given headers, and the beginning of its body.
func send(t *testing.T, to net.Addr, body int, headers ...string) *sender {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", to.String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(2*time.Minute)))
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s", webhookPath, strings.Join(headers, "\r\n"), strings.Repeat("x", body))
	require.NoError(t, err)
	return &sender{conn, bufio.NewReader(conn)}
}

// status reads the response.
func (s *sender) status() (code int, h http.Header, err error) {
	resp, err := http.ReadResponse(s.answer, nil)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.Header, err
}

const signed = signature.HeaderOpenZeppelin + ": AAAA"

func length(n int) string { return fmt.Sprintf("Content-Length: %d", n) }

// A thousand clients that each withhold the last byte of a webhook's body occupy the budget's memory, and no more.
func TestWebhook_ManyUnverifiedBodies_StayWithinTheBudget(t *testing.T) {
	t.Parallel()
	h, addr := serveWebhooks(t, func(h *Handler) { h.unverified.timeout = time.Hour })
	const clients, served = 1000, maxUnverified / DefaultMaxWebhook
	senders := make([]*sender, clients)
	codes := make(chan int, clients)
	for i := range senders {
		s := send(t, addr, DefaultMaxWebhook-1, signed, length(DefaultMaxWebhook))
		senders[i] = s
		go func() {
			code, header, err := s.status()
			if err != nil || code == http.StatusServiceUnavailable && header.Get("Retry-After") == "" {
				code = -1
			}
			codes <- code
		}()
	}
	for range clients - served {
		require.Equal(t, http.StatusServiceUnavailable, <-codes)
	}
	require.Equal(t, int64(maxUnverified), h.unverified.held.Load())
	require.Empty(t, codes)
	var unread dto.Metric
	require.NoError(t, h.metrics.webhooks.WithLabelValues("unread").Write(&unread))
	require.InDelta(t, clients-served, unread.GetCounter().GetValue(), 0)
	for _, s := range senders {
		_, _ = s.Write([]byte("x")) // most have their response
	}
	for range served {
		require.Equal(t, http.StatusUnauthorized, <-codes)
	}
	require.Zero(t, h.unverified.held.Load())
}

func TestWebhook_BodyAboveTheLimits_IsNotRead(t *testing.T) {
	t.Parallel()
	h, addr := serveWebhooks(t, func(h *Handler) { h.unverified.timeout = time.Hour })
	hasty, slow := serveWebhooks(t, func(h *Handler) { h.unverified.timeout = 50 * time.Millisecond })
	chunk := func(n int) string { return fmt.Sprintf("\r\n%x\r\n%s\r\n0\r\n", n, strings.Repeat("x", n)) }
	for name, c := range map[string]struct {
		code int
		sent *sender
	}{
		"no signature, no body": {http.StatusUnauthorized, send(t, addr, 0, length(DefaultMaxWebhook))},
		"empty":                 {http.StatusUnauthorized, send(t, addr, 0, signed, length(0))},
		"of the limit":          {http.StatusUnauthorized, send(t, addr, DefaultMaxWebhook, signed, length(DefaultMaxWebhook))},
		"chunks, of the limit":  {http.StatusUnauthorized, send(t, addr, 0, signed, "Transfer-Encoding: chunked", chunk(DefaultMaxWebhook))},
		"chunks, above":         {http.StatusRequestEntityTooLarge, send(t, addr, 0, signed, "Transfer-Encoding: chunked", chunk(DefaultMaxWebhook+1))},
		"above":                 {http.StatusRequestEntityTooLarge, send(t, addr, 0, signed, length(DefaultMaxWebhook+1))},
		"too slow":              {http.StatusRequestTimeout, send(t, slow, DefaultMaxWebhook-1, signed, length(DefaultMaxWebhook))},
		"too slow, chunks":      {http.StatusRequestTimeout, send(t, slow, 0, signed, "Transfer-Encoding: chunked", "\r\nff\r\nx")},
	} {
		code, _, err := c.sent.status()
		require.NoError(t, err, name)
		require.Equal(t, c.code, code, name)
	}
	require.Zero(t, h.unverified.held.Load()+hasty.unverified.held.Load())
}
