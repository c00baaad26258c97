package redis_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(t *testing.T, s *testredis.Server) string {
	t.Helper()
	v, err := s.Client().Get(t.Context(), "k").Result()
	if !errors.Is(err, redis.Nil) {
		require.NoError(t, err)
	}
	return v
}

func set(t *testing.T, s *testredis.Server, v string) {
	t.Helper()
	require.NoError(t, s.Client().Set(t.Context(), "k", v, 0).Err())
}

// failing is a testing.TB that records a failure.
type failing struct {
	testing.TB
	message string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (*failing) Skip(...any) { panic("skipped") }

func TestStart_ServerMissing_FailsTheTest(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	f := &failing{TB: t}
	var wg sync.WaitGroup
	wg.Go(func() { testredis.Start(f) })
	wg.Wait()
	require.Contains(t, f.message, "apt-get install redis-server")
}

func TestServer_StoppedOrKilled_KeepsData(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	set(t, s, "1")
	s.Stop()
	_, err := net.Dial("tcp", s.Addr())
	require.Error(t, err)
	s.Restart()
	require.Equal(t, "1", get(t, s))
	set(t, s, "2")
	s.Kill()
	s.Restart()
	require.Equal(t, "2", get(t, s))
	s.Stop()
	s.RestartEmpty()
	require.Empty(t, get(t, s))
	set(t, s, "3")
	s.FlushAll()
	require.Empty(t, get(t, s))
}

func TestPause_CommandIsExecutedLater(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	s.Pause()
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err, "a frozen server's port still accepts")
	defer conn.Close()
	_, err = conn.Write([]byte("SET k late\r\n"))
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	s.Resume()
	require.NoError(t, conn.SetReadDeadline(time.Time{}))
	_, err = conn.Read(make([]byte, 1))
	require.NoError(t, err)
	require.Equal(t, "late", get(t, s))
}

func TestPromote_Replica_IsStaleCopy(t *testing.T) {
	t.Parallel()
	a, b := testredis.Start(t, "--requirepass", "secret"), testredis.Start(t)
	set(t, a, "old")
	b.Client() // data that will be lost
	set(t, b, "mine")
	b.ReplicaOf(a)
	require.Equal(t, "old", get(t, b))
	require.ErrorContains(t, b.Client().Set(t.Context(), "k", "x", 0).Err(), "READONLY")
	b.Promote()
	set(t, a, "new")
	require.Equal(t, "old", get(t, b))
	set(t, b, "writable")
}

func TestMonitor_RecordsEachCommand(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t, "--requirepass", "secret")
	m := s.Monitor()
	set(t, s, "a \"quoted\"\x00\xff value")
	require.NoError(t, s.Client().Eval(t.Context(), "return redis.call('del', KEYS[1])", []string{"k"}).Err())
	var found []testredis.Command
	for _, c := range m.Commands() {
		switch c.Args[0] {
		case "SET", "DEL":
			found = append(found, c)
		}
	}
	require.Equal(t, []testredis.Command{
		{From: "127.0.0.1", Args: []string{"SET", "k", "a \"quoted\"\x00\xff value"}},
		{From: "127.0.0.1", Script: true, Args: []string{"DEL", "k"}},
	}, found)
	before := len(m.Commands())
	for i := range 100 {
		set(t, s, strconv.Itoa(i))
	}
	require.Len(t, m.Commands(), before+100)
}

func TestStart_Concurrent(t *testing.T) {
	for i := range 8 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			s := testredis.Start(t)
			set(t, s, t.Name())
			s.Kill()
			s.Restart()
			require.Equal(t, t.Name(), get(t, s), "the server is the test's own")
		})
	}
}
