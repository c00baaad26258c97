package pool

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	"github.com/rollcall-dev/rollcall/internal/relayer/httpapi"
)

const (
	// healthInterval is how often health is looked into; healthLimit how long the database may take for it.
	healthInterval = time.Second
	healthLimit    = 3 * time.Second
)

// Health implements [httpapi.Service]: what the last look has found.
func (p *Pool) Health() httpapi.Health {
	h := p.health.Load()
	if h == nil {
		return httpapi.Health{Reason: "starting"}
	}
	if age := time.Since(h.At); age > healthInterval+healthLimit+time.Second {
		return httpapi.Health{Reason: fmt.Sprintf("nothing has been checked for %v", age.Round(time.Second)), At: h.At}
	}
	return *h
}

// watch looks into the relayer's health until ctx ends.
func (p *Pool) watch(ctx context.Context) {
	for tick := time.NewTicker(healthInterval); ; {
		h := p.look(ctx)
		p.health.Store(&h)
		select {
		case <-ctx.Done():
			tick.Stop()
			// Whoever checks sees at once that nothing new is taken.
			p.health.Store(&httpapi.Health{Reason: "shutting down", At: time.Now()})
			return
		case <-tick.C:
		}
	}
}

// look finds out whether the relayer can really relay.
func (p *Pool) look(ctx context.Context) httpapi.Health {
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	h := httpapi.Health{At: time.Now()}
	add := func(name, problem string, degraded bool) {
		h.Components = append(h.Components, httpapi.Component{Name: name, Problem: problem, Degraded: degraded})
	}
	if p.cfg.Enabled {
		add("switch", "", false)
	} else {
		add("switch", "RELAYER_ENABLED is false", false)
	}
	keys, err := p.keys(ctx)
	var over bool
	if err == nil {
		over, err = p.cfg.Ledger.FailedOver(ctx)
	}
	if err != nil {
		add("database", "it does not answer", false)
		p.cfg.Log.Debug("health of the database", "err", err)
	} else {
		add("database", "", false)
		problem, degraded := keyProblem(keys)
		add("keys", problem, degraded)
		problem = ""
		if over {
			problem = "the database failed over: none is given out until all nodes have said which they know"
		}
		add("nonces", problem, false)
	}
	status := p.cfg.Chain.Status()
	var nodes []string
	for _, e := range status.Endpoints {
		if !e.OK {
			nodes = append(nodes, e.Endpoint+": "+e.Reason)
		}
	}
	add("rpc", strings.Join(nodes, "; "), status.OK())
	if err := p.cfg.Ready(); err != nil {
		add("chain", err.Error(), false)
	} else {
		add("chain", "", false)
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
	p.cfg.Metrics.show(&h, keys)
	if queued, err := p.cfg.Ledger.Queued(ctx); err == nil {
		p.cfg.Metrics.queued.Set(float64(queued))
	}
	return h
}

// keyProblem tells what is wrong with keys, and whether others are left.
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
