package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

const (
	// healthInterval is the interval of health checks; healthLimit bounds the database's part of one.
	healthInterval = time.Second
	healthLimit    = 3 * time.Second
	// quietAge is the age of the newest block above which it is reported, which is no fault.
	quietAge = time.Minute
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
	rounds := &roundsWatch{good: time.Now()}
	for tick := time.NewTicker(healthInterval); ; {
		h := s.checkHealth(ctx, rounds)
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
func (s *Service) checkHealth(ctx context.Context, rounds *roundsWatch) relayer.Health {
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	// The fees are read concurrently, so that a node that hangs does not use up the database's time.
	fees := make(chan error, 1)
	go func() {
		_, err := s.cfg.Chain.Fees(ctx)
		fees <- err
	}()
	h := relayer.Health{At: time.Now()}
	add := func(name, problem string, degraded bool) {
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
		add("database", "it does not answer", false)
		s.cfg.Log.Debug("health of the database", "err", err)
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
		add("rounds", s.roundsProblem(ctx, rounds), false)
	}
	problem, degraded := s.sendsProblem()
	add("sends", problem, degraded)
	if err := s.cfg.Ready(); err != nil {
		add("chain", err.Error(), false)
	} else {
		add("chain", "", false)
	}
	queued, queuedErr := s.cfg.Store.Queued(ctx)
	if err := <-fees; err != nil {
		add("fees", short(err), false)
	} else {
		add("fees", "", false)
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

// short returns an error's text on one line of bounded length.
func short(err error) string { return limited(err.Error()) }

func limited(text string) string {
	const longest = 300
	if text = strings.Join(strings.Fields(text), " "); len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "…"
	}
	return text
}

// roundsWatch is the state of the tracker's rounds across health checks. Only healthLoop uses it.
type roundsWatch struct {
	good  time.Time // when rounds last succeeded; initially the start time
	epoch int64     // of the tracker lease, as last read
	since time.Time // when that epoch was first read
}

// roundsProblem returns why rounds do not succeed; empty if they do. The tracking process reads its own state. Other
// processes check that it keeps its lease, which it renews after successful rounds.
func (s *Service) roundsProblem(ctx context.Context, w *roundsWatch) string {
	following, succeeded, failure := s.cfg.Rounds()
	now := time.Now()
	if following {
		w.epoch = 0
		if succeeded.After(w.good) {
			w.good = succeeded
		}
	} else if epoch, held, err := s.cfg.Store.Followed(ctx); err == nil {
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
		return fmt.Sprintf("no round has succeeded for %s: %s", age.Round(time.Second), short(failure))
	case following:
		return fmt.Sprintf("no round has succeeded for %s", age.Round(time.Second))
	default:
		return fmt.Sprintf("no process has followed the chain for %s", age.Round(time.Second))
	}
}

// sendsProblem returns why no transaction of this process has reached a node for a while; empty if one has. If a node answers
// in words that are not recognized, the cause may be the transaction, so the relayer stays usable.
func (s *Service) sendsProblem() (problem string, degraded bool) {
	during, err := s.cfg.Sender.Unreached()
	if err == nil || during < s.cfg.RoundsWithin {
		return "", false
	}
	_, answered := errors.AsType[*evm.RPCError](err)
	return fmt.Sprintf("no transaction has reached a node for %s: %s", during.Round(time.Second), short(err)), answered && !evm.IsMissingMethod(err)
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
