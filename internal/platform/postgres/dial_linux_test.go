package postgres

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Without root a test cannot drop packets. It can only check that the socket option is set.
func TestDial_UserTimeout_IsSet(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	conn, err := dialer().DialContext(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	var limit int
	require.NoError(t, raw.Control(func(fd uintptr) {
		limit, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout)
	}))
	require.NoError(t, err)
	require.EqualValues(t, unacknowledged.Milliseconds(), limit)
}
