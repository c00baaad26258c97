package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
)

// A process of its own, since go-ethereum leaves goroutines behind.
func TestChain_OwnProcess_AnswersAndStops(t *testing.T) {
	t.Parallel()
	const funded = "0x00000000000000000000000000000000000000Aa"
	address := freeAddress(t)
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(program, "chain", "--listen", address, "--fund", funded, "--block-time", "50ms")
	cmd.Env = append(os.Environ(), "ROLLCALL_TEST_MAIN=1")
	var log lockedBuffer
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })

	client, err := ethclient.DialContext(t.Context(), "http://"+address)
	require.NoError(t, err)
	defer client.Close()
	require.Eventually(t, func() bool {
		n, err := client.BlockNumber(t.Context())
		return err == nil && n > 3
	}, 2*time.Minute, 20*time.Millisecond, "%v", &log)
	balance, err := client.BalanceAt(t.Context(), common.HexToAddress(funded), nil)
	require.NoError(t, err)
	require.Equal(t, 1, balance.Sign())
	code, _ := get("http://" + address)
	require.Equal(t, 200, code, "a health check may ask it")

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-ended)
	require.Contains(t, log.String(), `"url":"http://`+address+`"`)
	require.Contains(t, log.String(), `"msg":"dev chain stopped"`)
}

func TestChain_BadFlagsOrTakenPort_Fails(t *testing.T) {
	t.Parallel()
	r := dev(t, "chain", "--fund", "0x12,0x00000000000000000000000000000000000000aa", "--listen", "8545")
	require.Equal(t, cli.ExitUsage, r.code)
	require.Contains(t, r.stderr, `"0x12" is not an address`)
	require.Contains(t, r.stderr, `"8545" is not an address to listen at`)

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	var stderr bytes.Buffer
	require.Equal(t, cli.ExitNotDone, run(t.Context(), []string{"chain", "--listen", taken.Addr().String()}, &stderr, &stderr))
	require.Contains(t, stderr.String(), "address already in use")
}
