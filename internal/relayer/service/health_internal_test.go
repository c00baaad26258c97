package service

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

// Anyone may read /health: a failure of the database is logged with its address and user, once, and the page has its class.
func TestPublic_FailureOfTheDatabase_ShowsItsClass(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	s := &Service{cfg: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	c := &checks{logged: map[string]string{}}
	_, refused := pgx.Connect(t.Context(), "postgres://alice:secret@127.0.0.1:1/sales")
	require.ErrorContains(t, refused, "alice")
	for range 2 {
		require.Equal(t, "unreachable", s.public(c, "rounds", fmt.Errorf("renew the lease: %w", refused)))
	}
	require.Equal(t, 1, strings.Count(log.String(), "user=alice database=sales"))
	require.NotContains(t, log.String(), "secret")
	require.Contains(t, s.public(c, "rounds", fmt.Errorf("read: %w", &evm.RPCError{Code: -32603, Message: "internal error"})), "internal error")
	require.Equal(t, "unreachable", s.public(c, "rounds", refused))
	require.Equal(t, 2, strings.Count(log.String(), "user=alice database=sales"), "another outage")

	log.Reset()
	require.Equal(t, "unreachable", s.public(c, "fees", &evm.TransportError{Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}))
	require.Empty(t, log.String(), "the client of the nodes logs it")
}
