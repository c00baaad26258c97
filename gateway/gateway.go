package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// maxResyncInterval is the longest ResyncInterval. After three minutes of silence of an owner, a leader lets other owners
// take its services. The interval's jitter, and the search for a new leader, fit in the rest.
const maxResyncInterval = 2 * time.Minute

// Config identifies a Gateway and defines its services. Calls of one hook do not overlap, and hooks must not block.
type Config struct {
	ClientConfig
	// ID is the owner id of the registered services: a DNS label, the same at each start, used by one process only.
	ID string
	// Source defines the services.
	Source Source
	// ResyncInterval is how often the full set is written again: 60 s by default, ±10 %, at least 1 s and at most 2 min.
	ResyncInterval time.Duration
	// DeregisterOnStop makes Run deregister everything when it is stopped. Without it the entries are kept, for a
	// gateway that will return.
	DeregisterOnStop bool
	// DeregisterTimeout limits the deregistration; 5 s by default.
	DeregisterTimeout time.Duration

	// OnLeader receives each leader found, and each new epoch.
	OnLeader func(Leader)
	// OnWrite receives each write that the directory accepted.
	OnWrite func(Write)
	// OnError receives the error of each failed attempt to update the directory.
	OnError func(error)
	// OnRefused receives the list of refused services when it changes.
	OnRefused func([]Refusal)
}

// Write is a write that the directory accepted.
type Write struct {
	Epoch, Index uint64
	// FullSet reports whether the write removed the services that were not in it.
	FullSet                        bool
	Registered, Unchanged, Removed uint32
	// Took is the duration, including the search for the leader and retries.
	Took time.Duration
}

// Refusal is a service that is defined here but refused by the directory.
type Refusal struct {
	ID string
	// Owner is the owner that has the id instead; zero if the service is refused for another reason.
	Owner  Owner
	Reason string
}

// Status is the status of a Gateway.
type Status struct {
	ID          string
	Incarnation uint64
	// Leader is the last leader found, zero before the first.
	Leader Leader
	// Synced reports whether the directory holds, in that leader's epoch, the source's last set except for Refused.
	Synced bool
	// Registered is how many services of this gateway the directory holds.
	Registered int
	// LastWrite is when the directory last accepted a write or confirmed that nothing changed; zero before.
	LastWrite time.Time
	Refused   []Refusal
	// Err is why the directory is not up to date; nil if it is.
	Err error
}

// ClaimedError ends Run: a gateway that started later, or whose clock is ahead, writes with the same id.
type ClaimedError struct {
	ID          string
	Incarnation uint64
}

func (e *ClaimedError) Error() string {
	return fmt.Sprintf("gateway id %q is claimed by another running gateway, started %s; each needs an id of its own",
		e.ID, time.Unix(0, int64(e.Incarnation)).UTC().Format(time.RFC3339Nano))
}

func (c *Config) validate() error {
	c.ResyncInterval = cmp.Or(c.ResyncInterval, time.Minute)
	c.DeregisterTimeout = cmp.Or(c.DeregisterTimeout, 5*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var errs []error
	if err := rollcallv1.CheckDNSLabel(c.ID); err != nil {
		errs = append(errs, fmt.Errorf("id: %w", err))
	}
	if c.Source == nil {
		errs = append(errs, errors.New("source: is missing"))
	}
	switch {
	case c.ResyncInterval < time.Second:
		errs = append(errs, fmt.Errorf("resync interval: %v is shorter than 1s", c.ResyncInterval))
	case c.ResyncInterval > maxResyncInterval:
		errs = append(errs, fmt.Errorf("resync interval: %v is longer than %v; another gateway may take over the services of one that is silent for 3m",
			c.ResyncInterval, maxResyncInterval))
	}
	if c.DeregisterTimeout < 0 {
		errs = append(errs, fmt.Errorf("deregister timeout: %v is negative", c.DeregisterTimeout))
	}
	return errors.Join(errs...)
}

// Gateway keeps the services of its source registered while Run runs.
type Gateway struct {
	cfg           Config
	log           *slog.Logger
	client        *Client
	leaderChanged chan struct{} // buffer of one: there is another leader or epoch

	mu     sync.Mutex
	status Status

	// The fields below belong to Run's own goroutine.

	incarnation, seq  uint64
	accepted          bool   // a write of this incarnation passed the directory's fence
	incarnationBumped bool   // the incarnation is no longer the clock's
	epoch             uint64 // in which the directory holds the full set; 0 if unknown
	registered        map[string]*rollcallv1.Service
	refused           map[string]refused
}

// New checks cfg. The Gateway does nothing before Run.
func New(cfg Config) (*Gateway, error) {
	invalid := cfg.validate()
	client, err := NewClient(cfg.ClientConfig)
	if err := errors.Join(invalid, err); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return &Gateway{
		cfg:           cfg,
		log:           cfg.Logger.With("component", "gateway", "gateway", cfg.ID),
		client:        client,
		leaderChanged: make(chan struct{}, 1),
		status:        Status{ID: cfg.ID},
		registered:    map[string]*rollcallv1.Service{},
		refused:       map[string]refused{},
	}, nil
}

// Client returns the Client that the Gateway uses, and closes when Run ends.
func (g *Gateway) Client() *Client { return g.client }

// Status returns the current status. It may be called at any time.
func (g *Gateway) Status() Status {
	missing := g.client.missing()
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.status
	s.Refused = slices.Clone(s.Refused)
	if missing != nil {
		s.Synced, s.Err = false, cmp.Or(s.Err, missing)
	}
	return s
}

// Run keeps the directory up to date until ctx ends, and then returns nil. It ends by itself only with ClaimedError.
// It logs other errors, reports them in Status, and retries. It may be called once.
func (g *Gateway) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer func() { _ = g.client.Close() }() // an error of closing connections is irrelevant
	following, stop := context.WithCancel(ctx)
	defer stop()
	tasks.Go(func() { g.followLeaders(following) })

	g.setIncarnation(uint64(time.Now().UnixNano()))
	pause := backoff.ExponentialBackOff{
		InitialInterval: 100 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: min(10*time.Second, g.cfg.ResyncInterval),
	}
	timer := time.NewTimer(g.cfg.ResyncInterval)
	defer timer.Stop()
	due := true // the next write is a full set
	for {
		select {
		case <-ctx.Done():
			return g.leave(context.WithoutCancel(ctx))
		case <-timer.C:
			due = true
		case <-g.leaderChanged:
		case <-g.cfg.Source.Changed():
			// Later changes are announced again, so Changed is the dirty flag.
		}
		full, err := g.sync(ctx, due)
		if ctx.Err() != nil {
			continue
		}
		g.report(err)
		if claimed, ok := errors.AsType[*ClaimedError](err); ok {
			return fmt.Errorf("gateway: %w", claimed)
		}
		switch {
		case err != nil:
			due = true
			timer.Reset(pause.NextBackOff())
		case full:
			due = false
			timer.Reset(jitter(g.cfg.ResyncInterval))
			pause.Reset()
		}
	}
}

func (g *Gateway) followLeaders(ctx context.Context) {
	for l := range g.client.Leaders(ctx) {
		g.update(func(s *Status) { s.Leader, s.Synced = l, false })
		if g.cfg.OnLeader != nil {
			g.cfg.OnLeader(l)
		}
		select {
		case g.leaderChanged <- struct{}{}:
		default:
		}
	}
}

// leave deregisters everything if DeregisterOnStop is set.
func (g *Gateway) leave(ctx context.Context) error {
	if !g.cfg.DeregisterOnStop {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.cfg.DeregisterTimeout)
	defer cancel()
	if err := g.registerAll(ctx, nil, true); err != nil {
		return fmt.Errorf("gateway: deregister: %w", err)
	}
	return nil
}

func (g *Gateway) update(change func(*Status)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(&g.status)
}

// report records and logs the result of an attempt to update the directory.
func (g *Gateway) report(err error) {
	g.mu.Lock()
	before := g.status.Err
	g.status.Err = err
	g.status.Synced = err == nil && g.epoch == g.status.Leader.Epoch
	g.status.Registered = len(g.registered)
	g.mu.Unlock()
	if err == nil {
		if before != nil {
			g.log.Info("directory is up to date again")
		}
		return
	}
	if g.cfg.OnError != nil {
		g.cfg.OnError(err)
	}
	level := slog.LevelWarn
	if before != nil && before.Error() == err.Error() {
		level = slog.LevelDebug
	}
	g.log.Log(context.Background(), level, "directory could not be brought up to date", "err", err)
}
