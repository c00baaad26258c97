package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

const (
	// healthInterval is the interval of health checks; healthLimit bounds the database's part of one.
	healthInterval = time.Second
	healthLimit    = 3 * time.Second
	// quietAge is the age of the newest block above which it is reported, which is no fault.
	quietAge = time.Minute
	// feesFor is how long a check relies on the fees that one has read, so that an idle relayer makes few calls.
	feesFor = 10 * time.Second
)

// Health implements [relayer.Service]. It returns the result of the last check.
func (s *Service) Health() relayer.Health {
	h := s.health.Load()
	if h == nil {
		return relayer.Health{Reason: "starting"}
	}
	if age := time.Since(h.At); age > healthInterval+healthLimit+time.Second {
		return relayer.Health{Reason: fmt.Sprintf("nothing has been checked for %v", age.Round(time.Second)), At: h.At}
	}
	return *h
}

// healthLoop checks the relayer's health until ctx ends.
func (s *Service) healthLoop(ctx context.Context) {
	checks := &checks{good: time.Now(), logged: map[string]string{}}
	for tick := time.NewTicker(healthInterval); ; {
		h := s.checkHealth(ctx, checks)
		s.health.Store(&h)
		select {
		case <-ctx.Done():
			tick.Stop()
			// A health check returns at once that no new request is accepted.
			s.health.Store(&relayer.Health{Reason: "shutting down", At: time.Now()})
			return
		case <-tick.C:
		}
	}
}

// checkHealth checks everything that the relayer needs to relay.
func (s *Service) checkHealth(ctx context.Context, checks *checks) relayer.Health {
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	h := relayer.Health{At: time.Now()}
	// The fees are read concurrently, so that a node that hangs does not use up the database's time.
	fees := make(chan error, 1)
	if h.At.Sub(checks.feesAt) < feesFor {
		fees <- nil
	} else {
		go func() {
			_, err := s.cfg.Chain.Fees(ctx)
			fees <- err
		}()
	}
	add := func(name, problem string, degraded bool) {
		if problem == "" {
			delete(checks.logged, name)
		}
		h.Components = append(h.Components, relayer.Component{Name: name, Problem: problem, Degraded: degraded})
	}
	if s.cfg.Enabled {
		add("switch", "", false)
	} else {
		add("switch", "RELAYER_ENABLED is false", false)
	}
	keys, err := s.keys(ctx)
	var over bool
	if err == nil {
		over, err = s.cfg.Store.FailedOver(ctx)
	}
	if err == nil {
		s.scopes.refresh(ctx, s.cfg.Store)
	}
	if err != nil {
		add("database", cmp.Or(s.class(checks, "database", err), "fails"), false)
	} else {
		add("database", "", false)
		problem, degraded := keyProblem(keys)
		add("keys", problem, degraded)
		problem = ""
		if over {
			problem = "the database failed over or was restored: none is given out until all nodes have reported their nonces"
		}
		var others bool
		if problem == "" {
			problem, others = s.uncompared(keys)
		}
		add("nonces", problem, others)
	}
	status := s.cfg.Chain.Status()
	var nodes []string
	var newest time.Time
	for _, e := range status.Endpoints {
		if e.HeadTime.After(newest) {
			newest = e.HeadTime
		}
		switch {
		case !e.OK:
			nodes = append(nodes, e.Endpoint+": "+e.Reason)
		case len(e.Failing) > 0:
			nodes = append(nodes, e.Endpoint+" fails "+failing(e.Failing))
		}
	}
	add("rpc", strings.Join(nodes, "; "), status.OK())
	if age := h.At.Sub(newest); !newest.IsZero() && age > quietAge {
		h.Components[len(h.Components)-1].Info = fmt.Sprintf("the newest block, %d, is %s old", status.Head, age.Round(time.Second))
	}
	if s.cfg.Rounds != nil {
		add("rounds", s.roundsProblem(ctx, checks), false)
	}
	problem, degraded := s.sendsProblem(checks)
	add("sends", problem, degraded)
	if err := s.cfg.Ready(); err != nil {
		add("chain", cmp.Or(s.class(checks, "chain", err), err.Error()), false)
	} else {
		add("chain", "", false)
	}
	queued, queuedErr := s.cfg.Store.Queued(ctx)
	if err := <-fees; err != nil {
		add("fees", s.public(checks, "fees", err), false)
	} else {
		add("fees", "", false)
		if h.At.Sub(checks.feesAt) >= feesFor {
			checks.feesAt = h.At
		}
	}
	h.Ready = true
	var reasons []string
	for _, c := range h.Components {
		if c.Problem != "" {
			reasons = append(reasons, c.Name+": "+c.Problem)
			h.Ready = h.Ready && c.Degraded
		}
	}
	h.Reason = strings.Join(reasons, "; ")
	s.cfg.Metrics.show(&h, keys)
	if queuedErr == nil {
		s.cfg.Metrics.queued.Set(float64(queued))
	}
	return h
}

// failing lists the methods that an endpoint fails, with the reasons.
func failing(methods map[string]string) string {
	var out []string
	for _, method := range slices.Sorted(maps.Keys(methods)) {
		out = append(out, method+" ("+limited(methods[method])+")")
	}
	return strings.Join(out, ", ")
}

// public returns the part of a component's failure that strangers may read, on one line of bounded length.
func (s *Service) public(c *checks, component string, err error) string {
	return cmp.Or(s.class(c, component, err), limited(err.Error()))
}

// class returns the class of a failure of the database or a network, whose text may have addresses and users; "" for another failure. It
// logs the failure when the class changes, unless a node failed: the client of the nodes has logged that.
func (s *Service) class(c *checks, component string, err error) string {
	class := postgres.Class(err)
	_, ofNode := errors.AsType[*evm.TransportError](err)
	if class != "" && class != c.logged[component] && !ofNode {
		s.cfg.Log.Warn("relayer unhealthy", "part", component, "err", err)
	}
	c.logged[component] = class
	return class
}

func limited(text string) string {
	const longest = 300
	if text = strings.Join(strings.Fields(text), " "); len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "…"
	}
	return text
}

// checks is the state across health checks. Only healthLoop uses it.
type checks struct {
	logged map[string]string // the class of the failure of a component that was logged last

	good  time.Time // when rounds last succeeded; initially the start time
	epoch int64     // of the tracker lease, as last read
	since time.Time // when that epoch was first read

	feesAt time.Time // when the fees were last read
}

// roundsProblem returns why rounds do not succeed; empty if they do. The tracking process reads its own state. Other
// processes check that it keeps its lease, which it renews after successful rounds.
func (s *Service) roundsProblem(ctx context.Context, w *checks) string {
	following, succeeded, failure := s.cfg.Rounds()
	now := time.Now()
	if following {
		w.epoch = 0
		if succeeded.After(w.good) {
			w.good = succeeded
		}
	} else if epoch, held, err := s.cfg.Store.TrackerLease().Current(ctx); err == nil {
		switch {
		case !held:
			w.epoch = 0
		case epoch != w.epoch:
			w.epoch, w.since = epoch, now
		case now.Sub(w.since) >= s.cfg.RoundsWithin/4:
			w.good = now
		}
	}
	age := now.Sub(w.good)
	switch {
	case age <= s.cfg.RoundsWithin:
		return ""
	case following && failure != nil:
		return fmt.Sprintf("no round has succeeded for %s: %s", age.Round(time.Second), s.public(w, "rounds", failure))
	case following:
		return fmt.Sprintf("no round has succeeded for %s", age.Round(time.Second))
	default:
		return fmt.Sprintf("no process has followed the chain for %s", age.Round(time.Second))
	}
}

// sendsProblem returns why no transaction of this process has reached a node for a while; empty if one has. If a node answers
// in words that are not recognized, the cause may be the transaction, so the relayer stays usable.
func (s *Service) sendsProblem(c *checks) (problem string, degraded bool) {
	during, err := s.cfg.Sender.Unreached()
	if err == nil || during < s.cfg.RoundsWithin {
		return "", false
	}
	_, answered := errors.AsType[*evm.RPCError](err)
	return fmt.Sprintf("no transaction has reached a node for %s: %s", during.Round(time.Second), s.public(c, "sends", err)), answered && !evm.IsMissingMethod(err)
}

// uncompared lists the keys that were not compared with the chain since this process registered, and reports whether others
// were.
func (s *Service) uncompared(keys []*relayer.Key) (problem string, others bool) {
	var out []string
	for _, k := range keys {
		if !s.cfg.Store.Trusts(k) {
			out = append(out, strings.ToLower(k.Address.Hex()))
		}
	}
	if len(out) == 0 {
		return "", false
	}
	slices.Sort(out)
	return "not compared with the chain yet, so that transactions wait: " + strings.Join(out, ", "), len(out) < len(keys)
}

// keyProblem returns the problems of keys, and whether other keys are usable.
func keyProblem(keys []*relayer.Key) (problem string, others bool) {
	if len(keys) == 0 {
		return "none is registered yet", false
	}
	var out []string
	for _, k := range keys {
		address := strings.ToLower(k.Address.Hex())
		switch {
		case !k.Enabled:
			out = append(out, address+" is disabled: "+k.DisabledReason)
		case k.Paused:
			out = append(out, address+" is paused")
		case !k.StuckSince.IsZero():
			out = append(out, address+" is stuck since "+k.StuckSince.UTC().Format(time.RFC3339))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", "), len(out) < len(keys)
}
