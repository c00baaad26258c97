package instance

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

const (
	// readTimeout bounds the statements of a turn, and those of a count.
	readTimeout = 10 * time.Second
	// leaveTimeout bounds the removal of the row at the end.
	leaveTimeout = time.Second
	// countingShare is the part of the time, as its inverse, that the process counts at most: the cost grows with the number of escrows. The
	// first failures are repeated sooner, because they may have another cause.
	countingShare = 50
	// starting is the problem of the database until the first turn.
	starting = "starting"
)

// Config configures a Monitor. Fields without a default are required.
type Config struct {
	Store *store.Store
	// Self is this process. Leader is filled in.
	Self store.Instance
	// Leading reports whether this process has the watcher's lease.
	Leading func() bool
	// Turned are the times at which the loops of the process last turned, by name. A heartbeat is written only if all of them did within
	// Hang. Default of Hang 1 min.
	Turned map[string]func() time.Time
	Hang   time.Duration
	// Problems are the current problems of the parts, by name; nil if there is none. The parts log them.
	Problems map[string]func() error
	// Newest returns the newest block whose events should be stored, as far as this process has looked; 0 if it has not.
	Newest func() uint64
	// Settings are for /status.
	Settings Settings
	// Replaced is called once, if another process has started under the id.
	Replaced func()
	// Interval is the time between two heartbeats. Default 3 s.
	Interval time.Duration
	// Lost is after how long without the database Run returns an error. Default 5 min.
	Lost       time.Duration
	Registerer prometheus.Registerer // default: none
	Logger     *slog.Logger          // default: discard
}

// Settings are those of a process that /status shows.
type Settings struct {
	ChainID  uint64 `json:"chain_id"`
	Delivery string `json:"delivery"`
	Finality string `json:"finality"`
	// Alone reports that one endpoint is configured, so that no other one confirms its answers.
	Alone bool `json:"alone"`
}

// Monitor keeps the row of this process, and reports. Its methods are safe for concurrent use.
type Monitor struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics

	begun    time.Time
	failing  time.Time // since when the database does not answer; zero while it does
	hanging  string    // the loop because of which no heartbeat is written
	replaced bool

	mu       sync.Mutex
	database string // the class of its problem; "" if it has none
	overview store.Overview
	totals   store.Totals
	counts   string // the class of the problem of the latest count; "" if it has none
}

// New returns a Monitor. It reports that it is starting until Run has read the database.
func New(cfg Config) *Monitor {
	cfg.Interval, cfg.Hang, cfg.Lost = cmp.Or(cfg.Interval, 3*time.Second), cmp.Or(cfg.Hang, time.Minute), cmp.Or(cfg.Lost, 5*time.Minute)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	m := &Monitor{cfg: cfg, log: cfg.Logger.With("component", "instance"), database: starting}
	m.metrics = newMetrics(cfg.Registerer, cfg.Leading)
	return m
}

// Join stores the row of this process, which replaces one that runs under the same id.
func (m *Monitor) Join(ctx context.Context) error { return m.cfg.Store.Join(ctx, m.cfg.Self) }

// Run writes heartbeats and reads the state of the chain until ctx ends; then it removes the row and returns nil. It returns an error if
// the database does not answer for Config.Lost.
func (m *Monitor) Run(ctx context.Context) error {
	m.begun = time.Now()
	counting, cancel := context.WithCancel(ctx)
	var counter sync.WaitGroup
	counter.Go(func() { m.keepCounting(counting) })
	defer counter.Wait()
	defer cancel()
	ticker := time.NewTicker(m.cfg.Interval)
	defer ticker.Stop()
	for {
		if err := m.turn(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
			defer cancel()
			if err := m.cfg.Store.Leave(ctx, m.cfg.Self); err != nil {
				m.log.Warn("row of the instance not removed: its heartbeat becomes old", "err", err)
			}
			return nil
		case <-ticker.C:
		}
	}
}

// turn makes one heartbeat and one reading.
func (m *Monitor) turn(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := m.beat(limited)
	if err == nil {
		err = m.read(limited)
	}
	if ctx.Err() != nil {
		return nil
	}
	m.mu.Lock()
	m.database = problem(err)
	m.mu.Unlock()
	switch {
	case err == nil && !m.failing.IsZero():
		m.log.Info("database answers again", "after", time.Since(m.failing).Round(time.Second).String())
		m.failing = time.Time{}
	case err == nil:
	case m.failing.IsZero():
		m.log.Warn("database does not answer", "err", err)
		m.failing = time.Now()
	case time.Since(m.failing) >= m.cfg.Lost:
		return fmt.Errorf("the database has not answered for %v, so that another process has to try: %w", m.cfg.Lost, err)
	}
	return nil
}

// beat writes a heartbeat if the loops turn, and looks whether another process has the id.
func (m *Monitor) beat(ctx context.Context) error {
	if m.replaced {
		return nil
	}
	var mine bool
	var err error
	if m.turning() {
		self := m.cfg.Self
		self.Leader = m.cfg.Leading()
		mine, err = m.cfg.Store.Beat(ctx, self)
	} else {
		mine, err = m.cfg.Store.Replaced(ctx, m.cfg.Self)
		mine = !mine
	}
	if err != nil || mine {
		return err
	}
	m.replaced = true
	m.cfg.Replaced()
	return nil
}

// turning reports whether all loops turn.
func (m *Monitor) turning() bool {
	hanging := ""
	for name, turned := range m.cfg.Turned {
		last := turned()
		if last.IsZero() { // it starts
			last = m.begun
		}
		if time.Since(last) > m.cfg.Hang {
			hanging = name
		}
	}
	switch {
	case hanging != "" && m.hanging == "":
		m.log.Error("no heartbeat is written: a loop does not turn", "loop", hanging, "limit", m.cfg.Hang.String())
	case hanging == "" && m.hanging != "":
		m.log.Info("heartbeats are written again", "loop", m.hanging)
	}
	m.hanging = hanging
	return hanging == ""
}

// read reads the state of the chain.
func (m *Monitor) read(ctx context.Context) error {
	overview, err := m.cfg.Store.Overview(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	before := m.overview.Halted
	m.overview = overview
	m.mu.Unlock()
	m.metrics.show(overview, m.lag(overview))
	switch {
	case overview.Halted != "" && before == "":
		m.log.Error("chain is halted: nothing is stored or published until an operator resumes it with \"rollcall escrow resume\"", "cause", overview.Halted)
	case overview.Halted == "" && before != "":
		m.log.Info("chain was resumed")
	}
	return nil
}

// keepCounting counts what is stored until ctx ends. The counts have a loop of their own, because they may become slow, or exceed their
// limit of time, while the database serves everything else: no heartbeat waits for them, and the process does not end because of them.
func (m *Monitor) keepCounting(ctx context.Context) {
	for failures := 0; ; {
		began := time.Now()
		share := countingShare
		switch {
		case m.lost(): // the count would fail, too
		case m.count(ctx):
			failures = 0
		default:
			failures++
			share = min(1<<min(failures, 10), countingShare)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(m.cfg.Interval, time.Duration(share)*time.Since(began))):
		}
	}
}

// lost reports whether the latest turn failed.
func (m *Monitor) lost() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.database != "" && m.database != starting
}

// count reads the totals, and reports whether that succeeded. Otherwise the former ones stay.
func (m *Monitor) count(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	totals, err := m.cfg.Store.Totals(limited)
	if ctx.Err() != nil {
		return false
	}
	m.mu.Lock()
	before := m.counts
	m.counts = problem(err)
	if err == nil {
		m.totals = totals
	}
	m.mu.Unlock()
	switch {
	case err == nil:
		m.metrics.count(totals, max(m.cfg.Self.Total, 1))
	case before == "":
		m.log.Warn("totals not counted: their metrics stay as they were", "err", err)
	}
	return err == nil
}

// problem returns the class of an error of the database; "" for nil.
func problem(err error) string {
	if err == nil {
		return ""
	}
	return cmp.Or(postgres.Class(err), "fails")
}
