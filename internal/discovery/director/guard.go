package director

import (
	"maps"
	"slices"
	"time"

	"github.com/rollcall-dev/rollcall/internal/discovery/health"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

// guard delays removals of one kind while it checks whether many fail at once, and while they do.
type guard struct {
	phase phase
	// A sample starts at began. It ends when waiting is empty, or at until, which is patience after the last answer. A
	// decision on part of the answers could release removals that all answers would hold. until is never after latest.
	began, until, latest time.Time
	patience             time.Duration
	waiting              map[string]struct{}
	// holdUntil is the end of the hold; zero before there is one.
	holdUntil time.Time
}

type phase int8

const (
	idle phase = iota
	// sampling: the rest of the kind is checked, to find whether a failure is one of many. During a hold, the held
	// services are checked, to find whether they have recovered.
	sampling
	holding
)

// minLost is how many services must fail for a mass failure.
const minLost = 2

// recordCheck records a check that a sample waits for. It ignores a check that began before the sample.
func (g *guard) recordCheck(r *health.Result, now time.Time) {
	if _, ok := g.waiting[r.ID]; ok && g.phase == sampling && !r.At.Add(-r.Latency).Before(g.began) {
		delete(g.waiting, r.ID)
		g.until = earlier(now.Add(g.patience), g.latest)
	}
}

// lost and alive return the number of failing services, and of those alive before. Both include services that this
// epoch has not seen alive, but that the mirror may list.
func (k *kind) lost() int  { return k.held + k.doubtful + k.inherited }
func (k *kind) alive() int { return k.up + k.held + k.inherited }

// massFailure reports whether more than the share of the previously live services fail at once.
func (k *kind) massFailure(share float64) bool {
	return k.lost() >= minLost && float64(k.lost()) > share*float64(k.alive())
}

// guardKinds updates each kind's guard. It returns the time until its next call is due. d.mu is held.
func (d *Director) guardKinds(now time.Time) time.Duration {
	next := now.Add(time.Hour)
	for name, k := range d.kinds {
		g := &k.guard
		expired := !g.holdUntil.IsZero() && !now.Before(g.holdUntil)
		if g.phase == idle && k.held > 0 {
			d.sample(name, k, now, func(s *service) bool { return s.state.Status != mirror.Unhealthy })
			d.log.Info("guard samples the rest", "kind", name, "failed", k.held, "sampled", len(g.waiting))
		}
		if g.phase == sampling && (len(g.waiting) == 0 || !now.Before(g.until)) {
			d.decideHold(name, k, now)
		}
		switch {
		case g.phase == idle:
		case k.held == 0:
			d.release(name, k, "all recovered or deregistered")
		case expired:
			d.release(name, k, "held for long enough")
		case g.phase == holding && !k.massFailure(d.cfg.MassFailureThreshold):
			// Services that have not been checked yet may have recovered as well.
			d.sample(name, k, now, func(s *service) bool { return s.state.Hold })
		}
		switch g.phase {
		case sampling:
			next = earlier(next, g.until)
		case holding:
			next = earlier(next, g.holdUntil)
		}
		if k.services == 0 {
			delete(d.kinds, name)
		}
	}
	return next.Sub(now)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// sample checks some services of a kind at once. d.mu is held.
func (d *Director) sample(name string, k *kind, now time.Time, which func(*service) bool) {
	g := &k.guard
	g.phase, g.began, g.waiting = sampling, now, make(map[string]struct{})
	for id, s := range d.services.Scan {
		if s.entry.Kind == name && which(s) {
			g.waiting[id] = struct{}{}
		}
	}
	// Void checks are repeated. A service without a result at the end keeps its state. patience covers all other
	// services, which may be checked before the first sampled one, or between two.
	wait := func(n int) time.Duration { return 2*d.checker.Round(n) + time.Second }
	g.patience = wait(d.services.Len() - len(g.waiting))
	g.latest = now.Add(wait(d.services.Len()))
	g.until = now.Add(g.patience)
	d.checker.CheckNow(slices.Collect(maps.Keys(g.waiting))...)
}

// decideHold decides, after a sample, whether removals are held. d.mu is held.
func (d *Director) decideHold(name string, k *kind, now time.Time) {
	g := &k.guard
	if !k.massFailure(d.cfg.MassFailureThreshold) {
		d.release(name, k, "fewer fail")
		return
	}
	g.phase = holding
	if g.holdUntil.IsZero() {
		g.holdUntil = now.Add(d.cfg.MassFailureHold)
		d.metrics.holds.Inc()
		d.log.Warn("guard holds removals", "kind", name, "failed", k.lost(), "of", k.alive(), "until", timefmt.Format(g.holdUntil))
	}
}

// release lets all held removals proceed. d.mu is held.
func (d *Director) release(name string, k *kind, why string) {
	if !k.guard.holdUntil.IsZero() {
		d.log.Warn("guard releases removals", "kind", name, "removals", k.held, "why", why)
	}
	k.guard = guard{}
	if k.held == 0 {
		return
	}
	for _, s := range d.services.Scan {
		if s.state.Hold && s.entry.Kind == name {
			s.hold(false)
			k.held--
			d.queueUpdate(s)
		}
	}
}

// holds returns the number of held services, and a note per hold for operators. d.mu is held.
func (d *Director) holds() (held int, notes []string) {
	for name, k := range d.kinds {
		held += k.held
		if !k.guard.holdUntil.IsZero() {
			notes = append(notes, holdNote(name, k))
		}
	}
	slices.Sort(notes)
	return held, notes
}
