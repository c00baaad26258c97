package main

import (
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/escrow/publish"
)

// A process of its own, since the fake leaves goroutines behind.
func TestPubSub_OwnProcess_AnswersAndStops(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(program, "pubsub", "--listen", address)
	cmd.Env = append(os.Environ(), "ROLLCALL_TEST_MAIN=1")
	var log lockedBuffer
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })

	topic, err := publish.OpenTopic(t.Context(), publish.TopicConfig{Project: "rollcall-dev", Topic: "settlement.events.v1", Emulator: address})
	require.NoError(t, err)
	defer topic.Close()
	require.Eventually(t, func() bool { return topic.Create(t.Context()) == nil }, 2*time.Minute, 20*time.Millisecond, "%v", &log)

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-ended)
	require.Contains(t, log.String(), `"listen":"`+address+`"`)
	require.Contains(t, log.String(), `"msg":"dev pubsub stopped"`)
}

func TestPubSub_TakenPort_Fails(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	r := dev(t, "pubsub", "--listen", taken.Addr().String())
	require.Equal(t, cli.ExitNotDone, r.code)
	require.Contains(t, r.stderr, "address already in use")
}
