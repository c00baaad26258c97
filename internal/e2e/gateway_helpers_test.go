package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// embedded is the gateway library in the test's own process, like in a self-registering program.
type embedded struct {
	*gateway.Gateway
	t    testing.TB
	stop func() error // stops it and returns the result of Run

	mu      sync.Mutex
	leaders []gateway.Leader // in the order of their discovery
	writes  []gateway.Write
}

// embed runs a gateway for these coordinators until stop is called or the test ends.
func (c *cluster) embed(id string, source gateway.Source, adjust ...func(*gateway.Config)) *embedded {
	c.t.Helper()
	e := &embedded{t: c.t}
	cfg := gateway.Config{
		ClientConfig: gateway.ClientConfig{Coordinators: strings.Split(c.addresses(), ",")},
		ID:           id, Source: source,
		OnLeader: func(l gateway.Leader) { e.mu.Lock(); defer e.mu.Unlock(); e.leaders = append(e.leaders, l) },
		OnWrite:  func(w gateway.Write) { e.mu.Lock(); defer e.mu.Unlock(); e.writes = append(e.writes, w) },
	}
	for _, a := range adjust {
		a(&cfg)
	}
	g, err := gateway.New(cfg)
	require.NoError(c.t, err)
	e.Gateway = g
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	e.stop = sync.OnceValue(func() error { cancel(); return <-done })
	c.t.Cleanup(func() { _ = e.stop() }) // tests that check the result call it themselves
	return e
}

func (e *embedded) found() []gateway.Leader {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.leaders)
}

func (e *embedded) written() []gateway.Write {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.writes)
}

// awaitSynced waits until the directory holds the source's services, in an epoch of at least the given one.
func (e *embedded) awaitSynced(epoch uint64) {
	e.t.Helper()
	eventually(e.t, patience, func() bool { s := e.Status(); return s.Synced && s.Leader.Epoch >= epoch },
		"the gateway is up to date in epoch %d", epoch)
}

// startRegistrant starts a self-registering program: this test binary in that role.
func (c *cluster) startRegistrant(id string, r *relayer) *process {
	c.t.Helper()
	self, err := os.Executable()
	require.NoError(c.t, err)
	return launchProgram(c.t, id, []string{"REGISTRANT=" + strings.Join([]string{id, r.id, r.url(), c.addresses()}, " ")}, self)
}

func init() {
	args := strings.Fields(os.Getenv("REGISTRANT"))
	if len(args) != 4 {
		return
	}
	g, err := gateway.New(gateway.Config{
		ClientConfig: gateway.ClientConfig{
			Coordinators: strings.Split(args[3], ","),
			Logger:       slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
		},
		ID: args[0], Source: gateway.Static(service(args[1], args[2])),
	})
	if err == nil {
		err = g.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// settable is a source that a test changes.
type settable struct {
	changed chan struct{}

	mu       sync.Mutex
	services []*rollcallv1.Service
}

func newSettable(services ...*rollcallv1.Service) *settable {
	return &settable{changed: make(chan struct{}, 1), services: services}
}

func (s *settable) set(services ...*rollcallv1.Service) {
	s.mu.Lock()
	s.services = services
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *settable) Services(context.Context) (gateway.Set, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return gateway.Set{Services: s.services, Complete: true}, nil
}

func (s *settable) Changed() <-chan struct{} { return s.changed }

// services returns the services of relayers, as a registering program defines them.
func services(relayers ...*relayer) (all []*rollcallv1.Service) {
	for _, r := range relayers {
		all = append(all, service(r.id, r.url()))
	}
	return all
}

// watchDirectory checks with WatchServices that ids never leave the directory, nor change. stop ends the watch after
// all current events, and fails the test if one did.
func (c *cluster) watchDirectory(ids ...string) (stop func()) {
	c.t.Helper()
	client, err := gateway.NewClient(gateway.ClientConfig{Coordinators: strings.Split(c.addresses(), ",")})
	require.NoError(c.t, err)
	ctx, cancel := context.WithCancel(c.t.Context())
	w := &watch{ids: ids, present: map[string]bool{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			w.run(ctx, client)
		}
	}()
	c.t.Cleanup(func() { cancel(); <-done; _ = client.Close() })
	eventually(c.t, patience, w.ready, "a first snapshot of the directory")
	return func() {
		c.t.Helper()
		mark := fmt.Sprintf("mark-%d", time.Now().UnixNano())
		c.mustCLI("services", "register", mark, "--url", "http://127.0.0.1:1", "--kind", "mark")
		eventually(c.t, patience, func() bool { return w.has(mark) }, "the watch has come as far as this")
		c.mustCLI("services", "deregister", mark)
		cancel()
		<-done
		w.mu.Lock()
		defer w.mu.Unlock()
		require.Empty(c.t, w.faults, "what happened to %v", ids)
	}
}

// watch is the state of a directory watch.
type watch struct {
	ids []string

	mu      sync.Mutex
	present map[string]bool
	faults  []string
	whole   bool // a snapshot has been read
}

func (w *watch) ready() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.whole
}

func (w *watch) has(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.present[id]
}

func (w *watch) run(ctx context.Context, client *gateway.Client) {
	snapshot := map[string]bool{}
	for resp, err := range client.Watch(ctx, &rollcallv1.WatchServicesRequest{}) {
		w.mu.Lock()
		switch {
		case errors.Is(err, gateway.ErrCompacted), ctx.Err() != nil: // starts again with a snapshot
		case err != nil:
			w.faults = append(w.faults, err.Error())
		case resp.GetSnapshotEnd() != nil:
			w.present, w.whole = snapshot, true
			for _, id := range w.ids {
				if !snapshot[id] {
					w.faults = append(w.faults, id+" is not in the snapshot")
				}
			}
		}
		for _, r := range resp.GetSnapshot().GetRecords() {
			snapshot[r.GetService().GetId()] = true
		}
		for _, ch := range resp.GetChanges().GetChanges() {
			if after := ch.GetAfter(); after != nil {
				w.present[after.GetService().GetId()] = true
			} else {
				delete(w.present, ch.GetBefore().GetService().GetId())
			}
			if id := ch.GetBefore().GetService().GetId(); slices.Contains(w.ids, id) {
				w.faults = append(w.faults, fmt.Sprintf("%s was changed: %v", id, ch))
			}
		}
		w.mu.Unlock()
	}
}
