package director

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/tidwall/btree"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/discovery/health"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Director runs one epoch.
type Director struct {
	cfg     Config
	log     *slog.Logger
	metrics *Metrics
	checker *health.Checker

	mu       sync.Mutex
	services btree.Map[string, *service]
	kinds    map[string]*kind
	// recovering is the number of services whose verdict the recovery waits for.
	recovering int
	state      rollcallv1.DirectorState
	stalls     []*rollcallv1.Stall // sorted by kind; replaced, never changed
	since      time.Time           // start of state
	writer     *mirror.Writer
	refused    error // why the last writer ended, until the current one has claimed
	// upserts and removed are the pending updates of the mirror: the dirty services in upserts, in any order, and
	// removed ids. They are slices, because a map that once held the whole directory would remain slow to clear.
	upserts []*service
	removed []string
	// newlyHealthy are services that became healthy, were not listed before, and are not logged yet.
	newlyHealthy []*service
	// foundSince is the start of the current foundSpan. foundLogged of its services were logged; foundMore are only
	// counted.
	foundSince             time.Time
	foundLogged, foundMore int
}

// service is an entry of the directory with its state in this epoch.
type service struct {
	entry *fsm.Entry
	// state is shared with the mirror, so it is replaced and never changed. It holds the result of the last check, and
	// before the first one only the address. Its Hold means that the guard keeps the failed service listed.
	state *mirror.Entry
	// recovering: the recovery waits for its verdict.
	recovering bool
	// dirty: listed in Director.upserts. An entry in upserts that is not dirty has been removed.
	dirty bool
}

// hold sets whether the guard keeps the service listed.
func (s *service) hold(yes bool) {
	state := *s.state
	state.Hold = yes
	s.state = &state
}

// kind counts the services of a kind.
type kind struct {
	services, up int
	// held counts the services that the guard holds. doubtful are up and inherited unknown, but failed their last
	// check.
	held, doubtful, inherited int
	guard                     guard
}

// New returns a director that does nothing before Run, or an error that lists all faults of the Config.
func New(cfg Config) (*Director, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	checker, err := health.New(cfg.Health)
	if err != nil {
		return nil, fmt.Errorf("director: %w", err)
	}
	d := &Director{
		cfg:     cfg,
		log:     cfg.Logger.With("component", "director", "epoch", cfg.Epoch),
		metrics: cfg.Metrics,
		checker: checker,
		kinds:   make(map[string]*kind),
		state:   rollcallv1.DirectorState_DIRECTOR_STATE_RECOVERING,
	}
	if d.writer, err = d.newWriter(); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Director) newWriter() (*mirror.Writer, error) {
	cfg := d.cfg.Mirror
	cfg.Cluster, cfg.Node, cfg.Epoch = d.cfg.Cluster, d.cfg.Node, d.cfg.Epoch
	cfg.Confirm, cfg.Lease = d.cfg.Confirm, d.cfg.Lease
	cfg.Interval = d.checker.Interval()
	cfg.Removed = d.reportRemovals
	return mirror.New(cfg)
}

// Run directs until ctx ends, lets running checks finish within a second, and returns 0 and nil. It ends earlier if the
// mirror must not continue in this epoch. It then returns a higher epoch of this cluster that Redis holds, or an error that
// wraps mirror.ErrSuperseded. Call it once.
func (d *Director) Run(ctx context.Context) (higher uint64, err error) {
	d.metrics.enter(d)
	defer d.metrics.leave(d)
	state, feed := d.cfg.Directory.Watch()
	d.mu.Lock()
	d.since = time.Now()
	d.load(state)
	first := d.writer
	d.flushMirror() // needed for an empty directory too
	d.mu.Unlock()
	d.log.Info("director recovering", "services", state.Len())

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := d.mirror(ctx, first)
		if err != nil {
			d.checker.Abandon() // the epoch is over
		}
		return err
	})
	checked := make(chan struct{})
	g.Go(func() error {
		select {
		case <-d.cfg.Ended:
			d.checker.Abandon()
		case <-checked:
		}
		return nil
	})
	g.Go(func() error {
		defer close(checked)
		// The previous leader must be fenced first. The listed services must also be known before the first verdict.
		select {
		case <-ctx.Done():
			return nil
		case <-first.FirstClaim():
			return d.checker.Run(ctx)
		}
	})
	g.Go(func() error { return d.follow(ctx, feed) })
	err = g.Wait()
	if found, ok := errors.AsType[*mirror.HigherEpochError](err); ok {
		return found.Seen, nil
	}
	return 0, err
}

// mirror runs a writer. It replaces a writer that found Redis to be another cluster's.
func (d *Director) mirror(ctx context.Context, w *mirror.Writer) error {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = time.Second, 10*time.Second
	for {
		err := w.Run(ctx)
		if err == nil {
			return nil
		}
		foreign, ok := errors.AsType[*mirror.ForeignClusterError](err)
		if !ok {
			return fmt.Errorf("direct epoch %d: %w", d.cfg.Epoch, err)
		}
		pause := retry.NextBackOff()
		d.log.Error("mirror refused: redis belongs to another cluster", "foreign", foreign.Cluster,
			"foreign_epoch", foreign.Epoch, "err", err, "retry_in", pause.Round(time.Millisecond))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		if w, err = d.replaceWriter(foreign); err != nil {
			return err
		}
	}
}

// replaceWriter creates a new writer and queues every service for it.
func (d *Director) replaceWriter(refused error) (*mirror.Writer, error) {
	w, err := d.newWriter()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused = refused
	d.writer = w
	for _, s := range d.services.Scan {
		d.queueUpdate(s)
	}
	d.flushMirror()
	return w, nil
}

// follow applies changes of the directory and results of checks, one at a time.
func (d *Director) follow(ctx context.Context, feed *fsm.Feed) error {
	var results []health.Result
	timer := time.NewTimer(0) // an empty directory needs a decision too
	defer timer.Stop()
	for {
		var changes fsm.Changes
		var restored *fsm.State
		results = results[:0]
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-d.checker.Ready():
			results = d.checker.Take(results)
		case <-feed.Ready():
			var err error
			changes, err = feed.Next(ctx)
			if errors.Is(err, fsm.ErrCompacted) {
				restored, feed = d.cfg.Directory.Watch()
				d.log.Info("following the directory again", "services", restored.Len())
			} else if err != nil {
				return nil // ctx has ended
			}
		}
		d.mu.Lock()
		now := time.Now()
		if restored != nil {
			d.load(restored)
		}
		d.apply(changes.Changes)
		for i := range results {
			d.applyResult(&results[i], now)
		}
		next := min(d.reportFound(now), d.guardKinds(now))
		d.decide(now)
		if len(d.upserts)+len(d.removed) > 0 {
			d.flushMirror()
		}
		d.mu.Unlock()
		timer.Reset(next)
	}
}

// load replaces the services with those of the state. The recovery then waits for all unknown ones. d.mu is held.
func (d *Director) load(state *fsm.State) {
	var changes []fsm.Change
	for e := range state.All() {
		before := (*fsm.Entry)(nil)
		if s, ok := d.services.Get(e.ID); ok {
			before = s.entry
		}
		if before == nil || before.Version != e.Version {
			changes = append(changes, fsm.Change{Before: before, After: e})
		}
	}
	for id, s := range d.services.Scan {
		if _, ok := state.Get(id); !ok {
			changes = append(changes, fsm.Change{Before: s.entry})
		}
	}
	d.apply(changes)
	for _, s := range d.services.Scan {
		if s.state.Status == mirror.Unknown {
			d.trackRecovery(s, true)
		}
	}
}

// apply applies changes of the directory. d.mu is held.
func (d *Director) apply(changes []fsm.Change) {
	var targets []health.Target
	var gone []string
	for _, c := range changes {
		switch {
		case c.After != nil:
			targets = append(targets, d.set(c.After))
		case d.remove(c.Before.ID):
			gone = append(gone, c.Before.ID)
		}
	}
	// One command may change a service more than once; only its final state counts.
	targets = slices.DeleteFunc(targets, func(t health.Target) bool {
		_, ok := d.services.Get(t.ID)
		return !ok
	})
	if len(gone) > 0 {
		d.checker.Remove(gone...)
	}
	if len(targets) > 0 {
		d.checker.Set(targets...)
	}
}

// set adds or updates a service. d.mu is held.
func (d *Director) set(e *fsm.Entry) health.Target {
	target := health.Target{ID: e.ID, Kind: e.Kind, URL: e.URL(), Version: e.Version}
	s, ok := d.services.Get(e.ID)
	if !ok {
		s = &service{}
		d.services.Set(e.ID, s)
	} else {
		d.count(s, -1)
		if s.entry.Kind != e.Kind {
			delete(d.kinds[s.entry.Kind].guard.waiting, e.ID)
		}
	}
	s.entry = e
	switch {
	case s.state == nil || s.state.URL != target.URL:
		s.state = &mirror.Entry{ID: e.ID, Kind: e.Kind, URL: target.URL, Status: mirror.Unknown}
		d.queueUpdate(s)
	case s.state.Kind != e.Kind:
		state := *s.state
		state.Kind, state.Hold = e.Kind, false
		s.state = &state
		d.queueUpdate(s)
	}
	d.count(s, +1)
	return target
}

// remove deletes a service, and reports whether it existed. d.mu is held.
func (d *Director) remove(id string) bool {
	s, ok := d.services.Get(id)
	if !ok {
		return false
	}
	d.trackRecovery(s, false)
	d.count(s, -1)
	delete(d.kinds[s.entry.Kind].guard.waiting, id)
	d.services.Delete(id)
	s.dirty = false
	d.removed = append(d.removed, id)
	return true
}

// applyResult applies the result of a check. d.mu is held.
func (d *Director) applyResult(r *health.Result, now time.Time) {
	s, ok := d.services.Get(r.ID)
	if !ok {
		return // cannot happen: the checker removes such services at once
	}
	before := s.state
	d.count(s, -1)
	s.state = &mirror.Entry{
		ID: r.ID, Kind: s.entry.Kind, URL: r.URL, Status: mirrorStatus(r.Verdict), Hold: before.Hold,
		LastCheck: r.At, Latency: r.Latency, Failures: r.Failures, Reason: r.Reason,
	}
	if s.state.Status != before.Status {
		d.onVerdictChange(s, before.Status)
	}
	d.count(s, +1)
	d.queueUpdate(s)
	if s.state.Status != mirror.Unknown {
		d.trackRecovery(s, false)
	}
	d.kinds[s.entry.Kind].guard.recordCheck(r, now)
}

// onVerdictChange handles a changed verdict. d.mu is held.
func (d *Director) onVerdictChange(s *service, before mirror.Status) {
	listed := before == mirror.Healthy || d.writer.Active(s.entry.ID)
	healthy := s.state.Status == mirror.Healthy
	switch {
	case healthy && s.state.Hold:
		s.hold(false)
		d.log.Info("relayer recovered before its removal", d.attrs(s)...)
	case healthy && before == mirror.Unhealthy:
		d.metrics.recoveries.Inc()
		d.log.Info("relayer recovered", d.attrs(s)...)
	case healthy && !listed:
		d.newlyHealthy = append(d.newlyHealthy, s)
	case healthy:
		// The service was inherited from the previous leader, and is still healthy.
	case d.cfg.MassFailureThreshold > 0 && (listed || !d.writer.Status().Claimed): // it may be listed, while Redis is away
		s.hold(true)
	case !listed:
		d.log.Info("relayer found unhealthy", d.attrs(s)...)
	}
}

const (
	// foundLines is how many newly healthy services within foundSpan get a log line each.
	foundLines = 10
	foundSpan  = time.Second
)

// reportFound logs newly healthy services that were not listed: the first foundLines of a foundSpan, and the number of
// the others at its end. It returns the time until its next call is due. d.mu is held.
func (d *Director) reportFound(now time.Time) time.Duration {
	over := now.Sub(d.foundSince) >= foundSpan
	if over && d.foundMore > 0 {
		d.log.Info("more relayers found healthy", "count", d.foundMore)
		d.foundMore = 0
	}
	if over && len(d.newlyHealthy) > 0 {
		d.foundSince, d.foundLogged = now, 0
	}
	for _, s := range d.newlyHealthy {
		if d.foundLogged < foundLines {
			d.log.Info("relayer found healthy", d.attrs(s)...)
			d.foundLogged++
		} else {
			d.foundMore++
		}
	}
	clear(d.newlyHealthy)
	d.newlyHealthy = d.newlyHealthy[:0]
	if d.foundMore > 0 {
		return d.foundSince.Add(foundSpan).Sub(now)
	}
	return time.Hour
}

// reportRemovals counts and logs services that have left the mirror. It is called only after the removal, because a
// deposed leader removes none, and none are removed while Redis is away.
func (d *Director) reportRemovals(removals []mirror.Removal) {
	for _, r := range removals {
		level, count, at := slog.LevelWarn, d.metrics.failed, r.Checked
		if at.IsZero() {
			level, count, at = slog.LevelInfo, d.metrics.deregistered, time.Now()
		}
		count.Inc()
		d.log.Log(context.Background(), level, "relayer removed",
			"service", r.ID, "kind", r.Kind, "url", r.URL, "at", timefmt.Format(at), "reason", r.Reason)
	}
}

// attrs returns the log attributes of a service.
func (d *Director) attrs(s *service) []any {
	return []any{
		"service", s.entry.ID, "kind", s.entry.Kind, "url", s.state.URL, "at", timefmt.Format(s.state.LastCheck),
		"reason", cmp.Or(s.state.Reason, "health check succeeded"),
	}
}

// queueUpdate queues a service for the mirror. d.mu is held.
func (d *Director) queueUpdate(s *service) {
	if !s.dirty {
		s.dirty = true
		d.upserts = append(d.upserts, s)
	}
}

// flushMirror passes the updates of queueUpdate and remove to the mirror. d.mu is held, so that a new writer misses
// none.
func (d *Director) flushMirror() {
	entries := make([]*mirror.Entry, 0, len(d.upserts))
	for _, s := range d.upserts {
		if s.dirty {
			s.dirty = false
			entries = append(entries, s.state)
		}
	}
	// A service that was removed and registered again is not gone.
	gone := slices.DeleteFunc(d.removed, func(id string) bool {
		_, ok := d.services.Get(id)
		return ok
	})
	d.writer.Update(entries, gone)
	d.upserts, d.removed = reuse(d.upserts), reuse(d.removed)
}

// reuse empties a slice for reuse. It drops a large one, which once held the whole directory.
func reuse[T any](all []T) []T {
	if cap(all) > 4096 {
		return nil
	}
	clear(all)
	return all[:0]
}

func mirrorStatus(v health.Verdict) mirror.Status {
	switch v {
	case health.Up:
		return mirror.Healthy
	case health.Down:
		return mirror.Unhealthy
	default:
		return mirror.Unknown
	}
}

// count adds by to the counts of a service's kind. d.mu is held.
func (d *Director) count(s *service, by int) {
	name := s.entry.Kind
	k := d.kinds[name]
	if k == nil {
		k = &kind{}
		d.kinds[name] = k
	}
	k.services += by
	failing := s.state.Failures > 0
	switch {
	case s.state.Status == mirror.Healthy && failing:
		k.up += by
		k.doubtful += by
	case s.state.Status == mirror.Healthy:
		k.up += by
	case s.state.Status == mirror.Unknown && failing:
		k.inherited += by
	}
	if s.state.Hold {
		k.held += by
	}
}

// trackRecovery sets whether the recovery waits for a service. d.mu is held.
func (d *Director) trackRecovery(s *service, yes bool) {
	switch {
	case yes && !s.recovering:
		d.recovering++
	case !yes && s.recovering:
		d.recovering--
	}
	s.recovering = yes
}

// decide computes the director's state. d.mu is held.
func (d *Director) decide(now time.Time) {
	var stalls []*rollcallv1.Stall
	state := rollcallv1.DirectorState_DIRECTOR_STATE_RECOVERING
	if d.recovering == 0 {
		stalls = d.missing()
		state = rollcallv1.DirectorState_DIRECTOR_STATE_RUNNING
		if len(stalls) > 0 {
			state = rollcallv1.DirectorState_DIRECTOR_STATE_STALLED
		}
	}
	d.reportStalls(stalls)
	if state == d.state {
		return
	}
	attrs := []any{"services", d.services.Len(), "after", now.Sub(d.since).Round(time.Millisecond)}
	switch state {
	case rollcallv1.DirectorState_DIRECTOR_STATE_RECOVERING:
		d.log.Info("director recovering", attrs...)
	case rollcallv1.DirectorState_DIRECTOR_STATE_RUNNING:
		d.log.Info("director running", attrs...)
	}
	d.state, d.since = state, now
}

// missing returns the kinds that have fewer live services than required. d.mu is held.
func (d *Director) missing() (stalls []*rollcallv1.Stall) {
	for _, name := range slices.Sorted(maps.Keys(d.cfg.MinLive)) {
		up := 0
		if k := d.kinds[name]; k != nil {
			up = k.up
		}
		if needed := d.cfg.MinLive[name]; up < needed {
			stalls = append(stalls, &rollcallv1.Stall{Kind: name, Needed: uint32(needed), Available: uint32(up)})
		}
	}
	return stalls
}

// reportStalls logs changes of the stalls. d.mu is held.
func (d *Director) reportStalls(stalls []*rollcallv1.Stall) {
	for _, s := range stalls {
		i := slices.IndexFunc(d.stalls, func(t *rollcallv1.Stall) bool { return t.Kind == s.Kind })
		if i < 0 {
			d.metrics.stalls.Inc()
		}
		if i < 0 || d.stalls[i].Available != s.Available {
			d.log.Warn("director stalled", "kind", s.Kind, "needed", s.Needed, "available", s.Available)
		}
	}
	d.stalls = stalls
}
