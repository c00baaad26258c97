package pgserver_test

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestServer_ParentDies_Ends(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	port := orphan(t, dir)
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, 2*time.Minute, 10*time.Millisecond)
	write(t, begin(t, dir), 1) // the folder is free
}

// orphan starts a server from another process, kills that process, and returns the port of the server.
func orphan(t *testing.T, dir string) int {
	t.Helper()
	port := freePort(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), parentOf+"="+dir, "PGSERVER_TEST_PORT="+strconv.Itoa(port))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "started: <nil>", strings.TrimSpace(line))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	return port
}
