package director

import (
	"maps"
	"slices"
	"time"

	"github.com/rollcall-dev/rollcall/internal/discovery/health"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

// guard keeps removals of one kind back while it finds out whether many fail at once, and while they do.
type guard struct {
	phase phase
	// A sample began at began, and is over when nobody is waited for any longer, or at until. That is patience after the
	// last answer: a decision on some of the answers could let go what all of them would hold. It is never after latest.
	began, until, latest time.Time
	patience             time.Duration
	waiting              map[string]struct{}
	// holdUntil bounds the hold; zero before there is one.
	holdUntil time.Time
}

type phase int8

const (
	idle phase = iota
	// sampling: the rest is checked, to see whether a failure is one of many; or, during a hold, what is held, to see
	// whether it has come back.
	sampling
	holding
)

// minLost is how many services must fail for a failure to be one of many.
const minLost = 2

// recordCheck takes note of a check that a sample may wait for. One that was under way when it began is not.
func (g *guard) recordCheck(r *health.Result, now time.Time) {
	if _, ok := g.waiting[r.ID]; ok && g.phase == sampling && !r.At.Add(-r.Latency).Before(g.began) {
		delete(g.waiting, r.ID)
		g.until = earlier(now.Add(g.patience), g.latest)
	}
}

// lost and alive count the services that fail, and those that were alive before. One that this epoch has not seen
// alive, but that the mirror may list, counts as well.
func (k *kind) lost() int  { return k.held + k.doubtful + k.inherited }
func (k *kind) alive() int { return k.up + k.held + k.inherited }

// massFailure reports whether more services than the share of those that were alive fail at once.
func (k *kind) massFailure(share float64) bool {
	return k.lost() >= minLost && float64(k.lost()) > share*float64(k.alive())
}

// guardKinds moves each kind's guard on, and gives the time until it has to be looked at again. d.mu is held.
func (d *Director) guardKinds(now time.Time) time.Duration {
	next := now.Add(time.Hour)
	for name, k := range d.kinds {
		g := &k.guard
		expired := !g.holdUntil.IsZero() && !now.Before(g.holdUntil)
		if g.phase == idle && k.held > 0 {
			d.sample(name, k, now, func(s *service) bool { return s.verdict() != health.Down })
			d.log.Info("guard samples the rest", "kind", name, "failed", k.held, "sampled", len(g.waiting))
		}
		if g.phase == sampling && (len(g.waiting) == 0 || !now.Before(g.until)) {
			d.hold(name, k, now)
		}
		switch {
		case g.phase == idle:
		case k.held == 0:
			d.release(name, k, "all recovered or deregistered")
		case expired:
			d.release(name, k, "held for long enough")
		case g.phase == holding && !k.massFailure(d.cfg.MassFailureThreshold):
			// Those whose turn has not come yet may have recovered as well.
			d.sample(name, k, now, func(s *service) bool { return s.held })
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

// sample has some of a kind checked at once. d.mu is held.
func (d *Director) sample(name string, k *kind, now time.Time, which func(*service) bool) {
	g := &k.guard
	g.phase, g.began, g.waiting = sampling, now, make(map[string]struct{})
	for id, s := range d.services.Scan {
		if s.entry.Kind == name && which(s) {
			g.waiting[id] = struct{}{}
		}
	}
	// Void checks are repeated; whoever still has no result then is as it was. The others are all that may have to be
	// checked before the first of these, or between two.
	wait := func(n int) time.Duration { return 2*d.checker.Round(n) + time.Second }
	g.patience = wait(d.services.Len() - len(g.waiting))
	g.latest = now.Add(wait(d.services.Len()))
	g.until = now.Add(g.patience)
	d.checker.CheckNow(slices.Collect(maps.Keys(g.waiting))...)
}

// hold decides, after a sample, whether removals are held. d.mu is held.
func (d *Director) hold(name string, k *kind, now time.Time) {
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

// release lets all removals that were held take their course. d.mu is held.
func (d *Director) release(name string, k *kind, why string) {
	if !k.guard.holdUntil.IsZero() {
		d.log.Warn("guard releases removals", "kind", name, "removals", k.held, "why", why)
	}
	k.guard = guard{}
	if k.held == 0 {
		return
	}
	for _, s := range d.services.Scan {
		if s.held && s.entry.Kind == name {
			s.held = false
			k.held--
			d.queueUpdate(s)
		}
	}
}

// holds describes what the guard holds, for people. d.mu is held.
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
