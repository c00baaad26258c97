package dev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/rollcall-dev/rollcall/gateway"
)

const (
	nodes  = 3 // coordinators
	relays = 3 // demo relayers

	gatewayID = "gateway"

	startLimit = 30 * time.Second
	// stopLimit is more than a coordinator takes to hand over and close.
	stopLimit = 10 * time.Second
)

// Config of a cluster on this machine.
type Config struct {
	// Data is the folder for everything; DefaultData by default.
	Data string
	// RedisURL of a Redis to use; by default one is embedded.
	RedisURL string
	// KeyPrefix of the keys in Redis, as the coordinators have it.
	KeyPrefix string
	// Interval between two health checks; 2 s by default.
	Interval time.Duration
	// Executable is the rollcall binary to start; this process's own by default.
	Executable string
	// Command is how the user calls it, for hints; the Executable by default.
	Command string
	// Out gets a line for everything that happens.
	Out io.Writer
}

// member is a process of the cluster, running or not.
type member struct {
	id    string
	kind  string // coordinator, relayer or gateway
	args  []string
	ready func(context.Context) error // nil when it serves

	proc *process // the last one started; nil before
}

func (m *member) pid() int {
	if m.proc == nil || !m.proc.running() {
		return 0
	}
	return m.proc.pid()
}

type supervisor struct {
	cfg      Config
	ports    *ports
	redisURL string
	members  []*member // in start order; what they hold is guarded by mu
	launcher *launcher
	client   *gateway.Client

	mu       sync.Mutex
	stopping bool
	watchers sync.WaitGroup

	outMu sync.Mutex
}

// Run runs the cluster until ctx ends, then stops it in order and returns nil. It fails when the folder is in
// use by another Run, or the cluster does not start.
func Run(ctx context.Context, cfg Config) (err error) {
	cfg.Data = cmp.Or(cfg.Data, DefaultData)
	cfg.Interval = cmp.Or(cfg.Interval, 2*time.Second)
	if cfg.Executable == "" {
		if cfg.Executable, err = os.Executable(); err != nil {
			return err
		}
	}
	cfg.Command = cmp.Or(cfg.Command, cfg.Executable)
	for _, folder := range []string{"logs", "services"} {
		if err := os.MkdirAll(filepath.Join(cfg.Data, folder), 0o700); err != nil {
			return err
		}
	}
	lock, err := lockAlone(ctx, filepath.Join(cfg.Data, lockFile), 500*time.Millisecond) // those who only ask are quick
	if errors.Is(err, errLocked) {
		return fmt.Errorf("a cluster runs from %s already; stop it with Ctrl-C where it was started, or name another folder with --data", cfg.Data)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := removeInfo(cfg.Data); err != nil {
		return err
	}

	s := &supervisor{cfg: cfg}
	s.say("starting three coordinators, a gateway and three relayers; their data is in %s", cfg.Data)
	starting, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not up within %v", startLimit))
	defer cancel()
	if s.ports, err = choosePorts(starting, cfg.Data, preferred); err != nil {
		return fmt.Errorf("choose ports: %w", err)
	}

	if s.redisURL = cfg.RedisURL; s.redisURL == "" {
		redis := miniredis.NewMiniRedis()
		if err := redis.StartAddr(local(s.ports.Redis)); err != nil {
			return fmt.Errorf("start the embedded Redis: %w", err)
		}
		defer redis.Close() // after the coordinators, which close their connections
		s.redisURL = "redis://" + local(s.ports.Redis)
	}
	if s.client, err = gateway.NewClient(gateway.ClientConfig{Coordinators: s.coordinators()}); err != nil {
		return err
	}
	defer s.client.Close()
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
	err := os.Remove(filepath.Join(data, infoFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// plan says which processes there are, in start order. Their settings are flags, which beat what is in the user's
// environment.
func (s *supervisor) plan() []*member {
	var all []*member
	for i, port := range s.ports.Relayer {
		id := fmt.Sprintf("oz-relayer-%d", i)
		all = append(all, &member{
			id: id, kind: "relayer",
			args:  []string{"dev-relayer", "--id", id, "--listen", local(port)},
			ready: answers("http://" + local(port) + "/health"),
		})
	}
	var peers []string
	for i, port := range s.ports.Cluster {
		peers = append(peers, fmt.Sprintf("%s=%s", coordinatorID(i), local(port)))
	}
	for i := range nodes {
		id := coordinatorID(i)
		cluster, http := local(s.ports.Cluster[i]), local(s.ports.HTTP[i])
		all = append(all, &member{
			id: id, kind: "coordinator",
			args: []string{
				"coordinator",
				"--node-id", id, "--peers", strings.Join(peers, ","),
				"--listen", cluster, "--advertise", cluster, "--advertise-client", cluster,
				"--http-listen", http, "--data", filepath.Join(s.cfg.Data, id), "--raft-timing", "lan",
				"--relayer-count", "0", "--health-check-interval-ms", fmt.Sprint(s.cfg.Interval.Milliseconds()),
			},
			ready: answers("http://" + http + "/readyz"),
		})
	}
	return append(all, &member{
		id: gatewayID, kind: "gateway",
		args: []string{
			"gateway",
			"--id", gatewayID, "--coordinators", strings.Join(s.coordinators(), ","),
			"--definitions", filepath.Join(s.cfg.Data, "services"), "--listen", local(s.ports.Gateway),
			"--state", filepath.Join(s.cfg.Data, gatewayID), "--settle", "0s", // nobody has advertised here before
		},
		ready: answers("http://" + local(s.ports.Gateway) + "/healthz"),
	})
}

func coordinatorID(i int) string { return fmt.Sprintf("coordinator-%d", i+1) }

func (s *supervisor) coordinators() []string {
	var addresses []string
	for _, port := range s.ports.Cluster {
		addresses = append(addresses, local(port))
	}
	return addresses
}

// answers is a check that a URL answers 200.
func answers(url string) func(context.Context) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, res.Status)
		}
		return nil
	}
}

// startAll starts every member and waits until all serve.
func (s *supervisor) startAll(ctx context.Context) error {
	var started []*process
	for _, m := range s.members {
		p, err := s.start(m)
		if err != nil {
			return err
		}
		started = append(started, p)
	}
	for i, m := range s.members {
		if err := started[i].await(ctx, m.ready); err != nil {
			return fmt.Errorf("%s did not start: %w\n%s: %s", m.id, err, s.logPath(m), lastLine(s.logPath(m)))
		}
	}
	return nil
}

func (s *supervisor) logPath(m *member) string { return filepath.Join(s.cfg.Data, "logs", m.id+".log") }

var (
	errRunning    = errors.New("runs already")
	errNotRunning = errors.New("is not running")
	errStopping   = errors.New("the cluster is being stopped")
)

func (s *supervisor) start(m *member) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil, errStopping
	}
	if m.pid() != 0 {
		return nil, fmt.Errorf("%s %w, as process %d", m.id, errRunning, m.pid())
	}
	p, err := s.launcher.start(s.cfg.Executable, m.args, s.variables(), s.logPath(m))
	if err != nil {
		return nil, err
	}
	m.proc = p
	s.watchers.Go(func() {
		<-p.done
		s.ended(m, p)
	})
	return p, s.writeInfo()
}

// variables are settings that are not for everybody who lists processes.
func (s *supervisor) variables() []string {
	return []string{"REDIS_URL=" + s.redisURL, "REDIS_KEY_PREFIX=" + s.cfg.KeyPrefix}
}

// kill ends a member as a crash would.
func (s *supervisor) kill(m *member) (pid int, err error) {
	s.mu.Lock()
	p := m.proc
	if pid = m.pid(); pid == 0 {
		s.mu.Unlock()
		return 0, fmt.Errorf("%s %w", m.id, errNotRunning)
	}
	p.killed = true
	s.mu.Unlock()
	p.kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	return pid, s.writeInfo() // whoever asked may look at dev.json next
}

// ended says that a process is gone, unless everything is being stopped.
func (s *supervisor) ended(m *member, p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return
	}
	_ = s.writeInfo() // it could be written a moment ago
	hint := fmt.Sprintf("start it again with: %s", s.hint("start", m.id))
	if p.killed {
		s.say("%s was killed; %s", m.id, hint)
		return
	}
	s.say("%s ended: %v; %s\n          last words: %s", m.id, p.err, hint, lastLine(s.logPath(m)))
}

// hint is a dev command that works from the user's folder.
func (s *supervisor) hint(args ...string) string {
	line := []string{s.cfg.Command, "dev"}
	line = append(line, args...)
	if s.cfg.Data != DefaultData {
		line = append(line, "--data", s.cfg.Data)
	}
	return strings.Join(line, " ")
}

// writeInfo brings dev.json up to date, unless everything is being stopped, at the end of which the file is removed.
// The caller holds mu.
func (s *supervisor) writeInfo() error {
	if s.stopping {
		return nil
	}
	pids := map[string]int{}
	for _, m := range s.members {
		pids[m.id] = m.pid()
	}
	info := Info{RedisURL: s.redisURL, KeyPrefix: s.cfg.KeyPrefix}
	for i := range nodes {
		id := coordinatorID(i)
		info.Coordinators = append(info.Coordinators, Coordinator{ID: id, PID: pids[id], Cluster: local(s.ports.Cluster[i]), HTTP: local(s.ports.HTTP[i])})
	}
	for i := range relays {
		id := fmt.Sprintf("oz-relayer-%d", i)
		info.Relayers = append(info.Relayers, Relayer{ID: id, PID: pids[id], URL: "http://" + local(s.ports.Relayer[i])})
	}
	info.Gateways = []Gateway{{ID: gatewayID, PID: pids[gatewayID], HTTP: local(s.ports.Gateway)}}
	return writeJSON(filepath.Join(s.cfg.Data, infoFile), info)
}

// find names a member, or "leader" for the coordinator that leads.
func (s *supervisor) find(ctx context.Context, name string) (*member, error) {
	if name == "leader" {
		l, err := s.client.Leader(ctx)
		if err != nil {
			return nil, err
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

// stopAll ends what runs: the gateway first, which has nothing to finish; then the coordinators, together, while
// the relayers still answer, so that none is taken out of Redis; the relayers last.
func (s *supervisor) stopAll() {
	s.mu.Lock()
	s.stopping = true // from here on no member has another process
	s.mu.Unlock()
	s.say("stopping")
	for _, kind := range []string{"gateway", "coordinator", "relayer"} {
		var wg sync.WaitGroup
		for _, m := range s.members {
			if m.kind == kind && m.pid() != 0 {
				wg.Go(func() {
					if !m.proc.stop(stopLimit) {
						s.say("%s did not stop within %v and was killed", m.id, stopLimit)
					} else if m.proc.err != nil {
						s.say("%s stopped with an error: %v: %s", m.id, m.proc.err, lastLine(s.logPath(m)))
					}
				})
			}
		}
		wg.Wait()
	}
	s.watchers.Wait()
	if err := removeInfo(s.cfg.Data); err != nil {
		s.say("%v", err)
	}
	s.say("stopped; the same command goes on from the same data")
}

// say prints a line, with the time.
func (s *supervisor) say(format string, args ...any) {
	s.outMu.Lock()
	defer s.outMu.Unlock()
	fmt.Fprintf(s.cfg.Out, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
