package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
)

const (
	nodes   = 3 // coordinators
	relays  = 3 // relayers, of one pool
	apis    = 2 // APIs of the relay path, and consumers
	escrows = 2 // instances of the escrow monitor

	startLimit = 2 * time.Minute
	// stopLimit is longer than a coordinator needs to transfer leadership and close.
	stopLimit = 10 * time.Second
	// leaderWait is how long a command waits for a running election.
	leaderWait = time.Second
)

// Config configures a cluster on this machine.
type Config struct {
	// Data is the folder for all files. Default: devinfo.DefaultData.
	Data string
	// RedisURL is the URL of an existing Redis. Default: a redis-server of the cluster.
	RedisURL string
	// KeyPrefix is the prefix of the keys in Redis, as configured at the coordinators.
	KeyPrefix string
	// Interval is the time between two health checks. Default 2 s.
	Interval time.Duration
	// NoDemo leaves out the escrows that the chain creates and settles.
	NoDemo bool
	// WebhookURLs are the base URLs that the relayers send webhooks to, such as those of proxies. Default: the APIs'.
	WebhookURLs []string
	// Rollcall is the program of the roles. Default: rollcall in the folder of this process's program.
	Rollcall string
	// Command is the name that hints print for this process's program. Default: its path.
	Command string
	// Out receives a line for every event.
	Out io.Writer
}

// supervisor runs the members.
type supervisor struct {
	cfg      Config
	self     string // this process's program
	ports    *ports
	redisURL string
	// redisServer is the path of redis-server; "" if the cluster uses a Redis that runs already.
	redisServer string
	secrets     *Secrets
	database    *database
	members     []*member // in start order; mu guards their contents
	launcher    *launcher
	client      *gateway.Client

	mu        sync.Mutex
	published bool // dev.json was written
	stopping  bool
	watchers  sync.WaitGroup

	outMu sync.Mutex
}

// Run runs the cluster until ctx ends, then stops it in order and returns nil. It fails if another Run uses the folder,
// or the cluster does not start.
func Run(ctx context.Context, cfg Config) (err error) {
	cfg.Data = cmp.Or(cfg.Data, devinfo.DefaultData)
	cfg.Interval = cmp.Or(cfg.Interval, 2*time.Second)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cfg.Rollcall = cmp.Or(cfg.Rollcall, filepath.Join(filepath.Dir(self), "rollcall"))
	cfg.Command = cmp.Or(cfg.Command, self)
	for _, folder := range []string{"logs", "services"} {
		if err := os.MkdirAll(filepath.Join(cfg.Data, folder), 0o700); err != nil {
			return fmt.Errorf("the data folder cannot be made: %w; name one that you may write to with --data", err)
		}
	}
	lock, err := lockAlone(ctx, filepath.Join(cfg.Data, devinfo.LockFile), 500*time.Millisecond) // a mere check holds it briefly
	if errors.Is(err, devinfo.ErrLocked) {
		return fmt.Errorf("a cluster runs from %s already; stop it with Ctrl-C where it was started, or name another folder with --data", cfg.Data)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := removeInfo(cfg.Data); err != nil {
		return err
	}
	if _, err := os.Stat(cfg.Rollcall); err != nil {
		return fmt.Errorf("the program of the roles is missing: %w; build it with make build, or name it with --rollcall", err)
	}

	s := &supervisor{cfg: cfg, self: self}
	if cfg.RedisURL == "" {
		if s.redisServer, err = findRedis(); err != nil {
			return err
		}
	}
	s.printf("starting three coordinators, a gateway, three relayers with PostgreSQL and a chain, two APIs and two consumers of the relay path, "+
		"and two instances of the escrow monitor with a fake of Pub/Sub; their data is in %s", cfg.Data)
	s.printf("the chain begins again at each start, and the relayers' data with it")
	starting, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not up within %v", startLimit))
	defer cancel()
	if s.ports, err = choosePorts(starting, cfg.Data, preferred); err != nil {
		return fmt.Errorf("choose ports: %w", err)
	}

	s.redisURL = cmp.Or(cfg.RedisURL, "redis://"+local(s.ports.Redis))
	if s.client, err = gateway.NewClient(gateway.ClientConfig{Coordinators: s.coordinators()}); err != nil {
		return err
	}
	defer s.client.Close()
	if s.secrets, err = OpenSecrets(starting, filepath.Join(cfg.Data, "secrets"), relays, s.webhookURLs()...); err != nil {
		return fmt.Errorf("the relayers' secrets: %w", err)
	}
	s.database = &database{data: cfg.Data, port: s.ports.Postgres, urlFile: s.secrets.databaseURLFile()}
	s.launcher = newLauncher()
	defer s.launcher.close()
	s.members = s.plan()
	if err := s.writeDefinitions(); err != nil {
		return err
	}

	defer s.stopAll()
	if err := s.startAll(starting); err != nil {
		if ctx.Err() != nil {
			return nil // Ctrl-C while starting
		}
		return err
	}
	return s.watch(ctx)
}

func removeInfo(data string) error {
	err := os.Remove(filepath.Join(data, devinfo.File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// startAll starts every member, stage by stage, and waits until all serve.
func (s *supervisor) startAll(ctx context.Context) error {
	for _, stage := range stages {
		for m := range s.of(stage.started) {
			if _, err := s.start(ctx, m); err != nil {
				return err
			}
		}
		for m := range s.of(stage.awaited) {
			if err := s.await(ctx, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// of yields the members of the given kinds, kind by kind.
func (s *supervisor) of(kinds []kind) iter.Seq[*member] {
	return func(yield func(*member) bool) {
		for _, k := range kinds {
			for _, m := range s.members {
				if m.kind == k && !yield(m) {
					return
				}
			}
		}
	}
}

// await waits until the current run of a member serves.
func (s *supervisor) await(ctx context.Context, m *member) error {
	s.mu.Lock()
	r := m.run
	s.mu.Unlock()
	if err := r.await(ctx, m.ready); err != nil {
		return fmt.Errorf("%s did not start: %w\n%s: %s", m.id, err, s.logPath(m), lastLine(s.logPath(m)))
	}
	return nil
}

// logPath returns the path of a member's log; PostgreSQL's is in the server's folder.
func (s *supervisor) logPath(m *member) string {
	if m.kind == kindPostgres && s.database.server != nil {
		return s.database.server.Log()
	}
	return filepath.Join(s.cfg.Data, "logs", m.id+".log")
}

var (
	errRunning    = errors.New("runs already")
	errNotRunning = errors.New("is not running")
	errStopping   = errors.New("the cluster is being stopped")
)

// start starts a member that does not run. It does not wait until the member serves; await does.
func (s *supervisor) start(ctx context.Context, m *member) (*run, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil, errStopping
	}
	if m.pid() != 0 {
		return nil, fmt.Errorf("%s %w, as process %d", m.id, errRunning, m.pid())
	}
	p, err := m.launch(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.id, err)
	}
	r := &run{process: p}
	m.run = r
	s.watchers.Go(func() {
		<-r.done()
		s.ended(m, r)
	})
	return r, s.writeInfo()
}

// kill ends a member like a crash.
func (s *supervisor) kill(m *member) (pid int, err error) {
	s.mu.Lock()
	r := m.run
	if pid = m.pid(); pid == 0 {
		s.mu.Unlock()
		return 0, fmt.Errorf("%s %w", m.id, errNotRunning)
	}
	r.killed = true
	s.mu.Unlock()
	r.kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	return pid, s.writeInfo() // the client may read dev.json next
}

// ended reports the end of a process, unless the cluster is being stopped.
func (s *supervisor) ended(m *member, r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return
	}
	_ = s.writeInfo() // the last write succeeded a moment ago
	hint := fmt.Sprintf("start it again with: %s", s.hint("start", m.id))
	if r.killed {
		s.printf("%s was killed; %s", m.id, hint)
		return
	}
	s.printf("%s ended: %v; %s\n          last words: %s", m.id, r.err(), hint, lastLine(s.logPath(m)))
}

// hint returns a dev command for the user's current folder.
func (s *supervisor) hint(args ...string) string {
	line := append([]string{s.cfg.Command}, args...)
	if s.cfg.Data != devinfo.DefaultData {
		line = append(line, "--data", s.cfg.Data)
	}
	return strings.Join(line, " ")
}

// find returns a member by name, or for "leader" the coordinator that leads.
func (s *supervisor) find(ctx context.Context, name string) (*member, error) {
	if name == "leader" {
		limited, cancel := context.WithTimeout(ctx, leaderWait)
		defer cancel()
		l, err := s.client.Leader(limited)
		if err != nil {
			return nil, fmt.Errorf("no coordinator leads: %s", s.quorum())
		}
		name = l.Node
	}
	i := slices.IndexFunc(s.members, func(m *member) bool { return m.id == name })
	if i < 0 {
		var known []string
		for _, m := range s.members {
			known = append(known, m.id)
		}
		return nil, fmt.Errorf("there is no %q; there are leader, %s", name, strings.Join(known, ", "))
	}
	return s.members[i], nil
}

// stopAll stops the members. The gateway is first, because it has nothing to finish. The coordinators follow,
// concurrently, while the relayers still answer, so that none is removed from Redis. Then come the relayers, and last
// all that they used.
func (s *supervisor) stopAll() {
	s.mu.Lock()
	s.stopping = true // from here on no member is started
	s.mu.Unlock()
	s.printf("stopping")
	for _, kinds := range [][]kind{
		{kindGateway, kindAPI, kindConsumer, kindEscrow}, {kindCoordinator}, {kindRelayer}, {kindChain, kindPostgres, kindRedis, kindPubSub},
	} {
		var wg sync.WaitGroup
		for m := range s.of(kinds) {
			if m.pid() != 0 {
				wg.Go(func() {
					if !m.run.stop(stopLimit) {
						s.printf("%s did not stop within %v and was killed", m.id, stopLimit)
					} else if err := m.run.err(); err != nil && m.run.served.Load() { // a starting member may end in any way
						s.printf("%s stopped with an error: %v: %s", m.id, err, lastLine(s.logPath(m)))
					}
				})
			}
		}
		wg.Wait()
	}
	s.watchers.Wait()
	for _, err := range []error{s.database.tidy(), removeInfo(s.cfg.Data)} {
		if err != nil {
			s.printf("%v", err)
		}
	}
	s.printf("stopped; the same command goes on from the same data, on a new chain")
}

// printf prints a line with the time.
func (s *supervisor) printf(format string, args ...any) {
	s.outMu.Lock()
	defer s.outMu.Unlock()
	fmt.Fprintf(s.cfg.Out, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
