package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rollcall-dev/rollcall/internal/dev/pgserver"
	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
)

// "rollcall-dev kill" sends a request to the supervisor, over a socket in the data folder. Only the supervisor has the
// current leader and can keep a killed member stopped. A pid from a file could belong to another process by now.

var (
	// ErrNotRunning means that no cluster runs from the data folder.
	ErrNotRunning = errors.New("no cluster runs there")
	// ErrNoAnswer means that the supervisor may have executed the command or not.
	ErrNoAnswer = errors.New("the supervisor did not answer")
	// ErrStarting means that a cluster is being started.
	ErrStarting = errors.New("the cluster there is being started; try again when it has printed where everything is")
)

// Absent returns why no supervisor answers in the data folder: ErrStarting or ErrNotRunning.
func Absent(data string) error {
	if devinfo.Locked(data) {
		return ErrStarting
	}
	return ErrNotRunning
}

// Result is the result of a control command.
type Result struct {
	// Member is the process's name; for "leader", the coordinator that leads.
	Member string `json:"member"`
	PID    int    `json:"pid"`
}

const (
	// memberLimit is how long a started member may take until it serves.
	memberLimit = 30 * time.Second
	// controlLimit is how long a command waits for its answer. Postgres that was killed recovers before it counts as started, and a
	// "kill" waits for a start that runs.
	controlLimit = pgserver.StartLimit + memberLimit + 5*time.Second
)

// Kill ends a member like a crash: "leader", or an id from dev.json.
func Kill(ctx context.Context, data, member string) (Result, error) {
	return command(ctx, data, "kill", member)
}

// Start starts a stopped member, and waits until it serves.
func Start(ctx context.Context, data, member string) (Result, error) {
	return command(ctx, data, "start", member)
}

func command(ctx context.Context, data, verb, member string) (Result, error) {
	socket, err := socketPath(data)
	if err != nil {
		return Result{}, err
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	ctx, cancel := context.WithTimeout(ctx, controlLimit)
	defer cancel()
	target := "http://dev/" + verb + "?member=" + url.QueryEscape(member)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, nil)
	if err != nil {
		return Result{}, err
	}
	res, err := transport.RoundTrip(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return Result{}, Absent(data)
	case errors.Is(err, context.DeadlineExceeded):
		return Result{}, fmt.Errorf("%w within %v; see %s", ErrNoAnswer, controlLimit, filepath.Join(data, "logs"))
	case errors.Is(err, context.Canceled):
		return Result{}, ErrNoAnswer
	case err != nil:
		return Result{}, err
	}
	defer res.Body.Close()
	var answer struct {
		Result
		Error string `json:"error"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return Result{}, fmt.Errorf("answer of the supervisor: %w", err)
	}
	if answer.Error != "" {
		return answer.Result, errors.New(answer.Error)
	}
	return answer.Result, nil
}

// socketPath returns a path in the data folder, or a shorter one if that exceeds the limit of a socket's name.
func socketPath(data string) (string, error) {
	const longest = 100
	abs, err := filepath.Abs(data)
	if err != nil {
		return "", err
	}
	if path := filepath.Join(abs, "control.sock"); len(path) <= longest {
		return path, nil
	}
	sum := sha256.Sum256([]byte(abs))
	return filepath.Join(os.TempDir(), fmt.Sprintf("rollcall-dev-%x.sock", sum[:8])), nil
}

// listenControl opens the socket for commands.
func (s *supervisor) listenControl(ctx context.Context) (net.Listener, error) {
	socket, err := socketPath(s.cfg.Data)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// serveControl answers commands until ctx ends, and then waits for running ones.
func (s *supervisor) serveControl(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /kill", s.control(func(_ context.Context, m *member) (int, error) { return s.kill(m) }))
	mux.HandleFunc("POST /start", s.control(func(ctx context.Context, m *member) (int, error) { return s.startServing(ctx, m, memberLimit) }))
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	stopped := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		defer close(stopped)
		// Commands end with ctx. The timeout limits the wait for a client that is still sending its request's header.
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if server.Shutdown(limited) != nil {
			_ = server.Close()
		}
	})()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-stopped // Serve does not wait for it
	return nil
}

// startServing starts a member, and waits until it serves. A member that does not serve in time stays started.
func (s *supervisor) startServing(ctx context.Context, m *member, limit time.Duration) (pid int, err error) {
	r, err := s.start(ctx, m)
	if err != nil {
		return 0, err
	}
	if m.kind == kindChain {
		s.printf("the chain is another one, on which the relayers send nothing; stop the cluster and start it to empty their data, too")
	}
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	switch err := r.await(waiting, m.ready); {
	case err != nil && r.running() && ctx.Err() == nil:
		return 0, fmt.Errorf("%s runs as process %d, but is not ready after %v: %w; see %s", m.id, r.pid(), limit, err, s.logPath(m))
	case err != nil:
		return 0, fmt.Errorf("%s did not start: %w: %s", m.id, err, lastLine(s.logPath(m)))
	}
	s.printf("%s was started", m.id)
	return r.pid(), nil
}

func (s *supervisor) control(do func(context.Context, *member) (pid int, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer := map[string]any{}
		m, err := s.find(r.Context(), strings.TrimSpace(r.FormValue("member")))
		if err == nil {
			answer["member"] = m.id
			answer["pid"], err = do(r.Context(), m)
		}
		if err != nil {
			answer["error"] = err.Error()
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}
}
