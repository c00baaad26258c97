package redis

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

// Server is a redis-server process. Its methods fail the test instead of returning errors; they are for one
// goroutine, except Addr, URL and Client.
type Server struct {
	t      testing.TB
	binary string
	dir    string
	port   int
	args   []string
	conf   string // of a sentinel
	client *redis.Client
	proc   *testproc.Process // nil while stopped
}

// Start starts an empty server. args are appended to its command line, such as "--requirepass", "secret".
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, "", args)
}

// StartSentinel starts a sentinel with a configuration file, which it rewrites.
func StartSentinel(t testing.TB, conf string) *Server {
	t.Helper()
	return start(t, conf, nil)
}

func start(t testing.TB, conf string, args []string) *Server {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("redis-server is needed for this test: `apt-get install redis-server`, or `brew install redis` "+
			"on macOS, or scripts/setup.sh: %v", err)
	}
	logging.Disable() // go-redis would print a line for each failed dial, which tests provoke
	s := &Server{t: t, binary: binary, dir: t.TempDir(), args: args, conf: conf}
	t.Cleanup(s.end)
	// Another process may take a port between its choice and the server's bind.
	for attempt := 1; ; attempt++ {
		if s.port, err = testproc.FreePort(); err != nil {
			t.Fatal(err)
		}
		err := s.launch()
		if err == nil {
			break
		}
		if attempt == 20 {
			t.Fatalf("start redis-server: %v", err)
		}
	}
	s.client = redis.NewClient(&redis.Options{
		Addr: s.Addr(), Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1,
		Password:                 s.password(),
		ReadTimeout:              testproc.Patience, // a server may answer late on a busy machine
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	return s
}

// Addr returns host:port. It stays the same for the life of the Server.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// URL returns redis://host:port, without a password.
func (s *Server) URL() string { return "redis://" + s.Addr() }

// Client returns a client for checks and changes by the test. It is closed with the test.
func (s *Server) Client() *redis.Client { return s.client }

// Stop ends the server like an operator would, and keeps its data.
func (s *Server) Stop() { s.stop(syscall.SIGTERM) }

// Kill ends the server at once. It keeps all data that it had acknowledged.
func (s *Server) Kill() { s.stop(syscall.SIGKILL) }

// Restart starts a server that was stopped or killed, on its port and with its data.
func (s *Server) Restart() {
	s.t.Helper()
	deadline := time.Now().Add(testproc.Patience)
	for {
		// Another process may hold the port for a moment.
		err := s.launch()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("restart redis-server: %v", err)
		}
	}
}

// RestartEmpty is Restart without the data.
func (s *Server) RestartEmpty() {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(s.dir, "*"))
	for _, f := range files {
		if err == nil {
			err = os.RemoveAll(f)
		}
	}
	if err != nil {
		s.t.Fatalf("empty redis-server: %v", err)
	}
	s.Restart()
}

// Pause freezes the process: its port accepts connections, and no request is answered.
func (s *Server) Pause() {
	s.t.Helper()
	s.must(s.running().Freeze(), "pause")
}

// Resume ends a Pause. The server executes the requests that arrived meanwhile.
func (s *Server) Resume() {
	s.t.Helper()
	s.must(s.running().Signal(syscall.SIGCONT), "resume")
}

// FlushAll deletes everything.
func (s *Server) FlushAll() {
	s.t.Helper()
	s.must(s.client.FlushAll(s.context()).Err(), "FLUSHALL")
}

// ReplicaOf makes the server a replica of another and returns when it holds the other's data. Its own data is lost.
func (s *Server) ReplicaOf(master *Server) {
	s.t.Helper()
	ctx := s.context()
	if p := master.password(); p != "" {
		s.must(s.client.ConfigSet(ctx, "masterauth", p).Err(), "masterauth")
	}
	s.must(s.client.ReplicaOf(ctx, "127.0.0.1", strconv.Itoa(master.port)).Err(), "REPLICAOF")
	for {
		info, err := s.client.Info(ctx, "replication").Result()
		s.must(err, "INFO")
		if strings.Contains(info, "master_link_status:up") {
			return
		}
		testproc.Pause(ctx)
	}
}

// Promote makes a replica a master with its current data.
func (s *Server) Promote() {
	s.t.Helper()
	s.must(s.client.ReplicaOf(s.context(), "NO", "ONE").Err(), "REPLICAOF NO ONE")
}

func (s *Server) password() string {
	for i, a := range s.args {
		if a == "--requirepass" && i+1 < len(s.args) {
			return s.args[i+1]
		}
	}
	return ""
}

// context returns a context with the time limit of one operation of a healthy server.
func (s *Server) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testproc.Patience)
	s.t.Cleanup(cancel)
	return ctx
}

func (s *Server) must(err error, doing string) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s on redis-server %s: %v", doing, s.Addr(), err)
	}
}

// launch starts the process and waits until it is ready.
func (s *Server) launch() error {
	if s.proc != nil {
		return fmt.Errorf("it runs already")
	}
	args := append([]string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--dir", s.dir,
		"--save", "", "--appendonly", "yes", "--appendfsync", "no",
		"--repl-diskless-sync-delay", "0", "--daemonize", "no", "--loglevel", "notice",
	}, s.args...)
	if s.conf != "" {
		args = []string{s.conf, "--sentinel", "--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--dir", s.dir}
	}
	proc, err := testproc.Start(exec.Command(s.binary, args...), func(line string) bool {
		return strings.Contains(line, "Ready to accept connections") || strings.Contains(line, "Sentinel ID is")
	})
	s.proc = proc
	return err
}

// running returns the process and fails the test if there is none.
func (s *Server) running() *testproc.Process {
	s.t.Helper()
	if s.proc == nil {
		s.t.Fatalf("redis-server %s does not run", s.Addr())
	}
	return s.proc
}

func (s *Server) stop(sig syscall.Signal) {
	s.t.Helper()
	p := s.running()
	s.proc = nil
	s.must(p.Stop(sig), sig.String())
}

// end is the cleanup: it closes the client and kills the process.
func (s *Server) end() {
	if s.client != nil {
		_ = s.client.Close()
	}
	if s.proc != nil {
		s.proc.Kill()
	}
}
