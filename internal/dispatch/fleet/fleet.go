package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/consumer"
	"github.com/rollcall-dev/rollcall/internal/dispatch/store"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
	"github.com/rollcall-dev/rollcall/internal/platform/batch"
)

// Store is the part of the store that a Fleet calls.
type Store interface {
	Outstanding(ctx context.Context, stuckAfter time.Duration) ([]store.Outstanding, error)
	Chain(ctx context.Context) (uint64, error)
	ClaimChain(ctx context.Context, id uint64) (uint64, error)
	HasOpen(ctx context.Context) (bool, error)
}

// Config configures a Fleet. Fields without a default are required.
type Config struct {
	Redis redis.UniversalClient
	// Prefix is the prefix of the mirror's keys.
	Prefix string
	// URLTemplate is the URL of relayers without a status hash: {N} is the number of oz-relayer-N, {id} is the id. Default:
	// none, so that such a relayer is not used.
	URLTemplate string
	// Client returns a client for a relayer with the id of its service and its base URL. The Fleet closes it.
	Client func(id, url string) (*upstream.Client, error)
	Store  Store
	// Poll is how often Redis, the loads and the store are read. Default 1 s.
	Poll time.Duration
	// KeepFor is how long the last known set counts while Redis cannot be read. Default 60 s.
	KeepFor time.Duration
	// SilentAfter is after how long an accepted transaction without a hash speaks against its relayer. Default 3 s.
	SilentAfter time.Duration
	// Clocks receives how far the relayers' clocks are ahead, by the ids of their services, twice a minute. Default: nothing.
	Clocks     func(ctx context.Context, ahead map[string]time.Duration) error
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

// Fleet is the live relayers. Run keeps it current. Its methods are safe for concurrent use. It implements
// [consumer.Relayers].
type Fleet struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	counts  *batch.Group[string, store.Outstanding] // by the id of the service
	wake    chan struct{}

	mu      sync.Mutex
	members map[string]*member // by the id of the service
	readAt  time.Time          // of the last successful read of Redis
	left    map[route]*upstream.Client
	causes  map[string]error // why listed relayers are not used, by id, as logged
	unread  int              // members of the set that were not read
	// undecided is why the database has no chain, so that no relayer is used; "" if it has one.
	undecided string
	claiming  sync.Mutex // is held while all relayers are asked for their chains, and guards claimedAt
	claimedAt time.Time

	usual usual
}

// route identifies a relayer that is not live any more.
type route struct{ id, url string }

// New returns a Fleet, which knows no relayers until Run has read Redis.
func New(cfg Config) *Fleet {
	cfg.Poll = cmp.Or(cfg.Poll, time.Second)
	cfg.KeepFor = cmp.Or(cfg.KeepFor, time.Minute)
	cfg.SilentAfter = cmp.Or(cfg.SilentAfter, 3*time.Second)
	f := &Fleet{
		cfg: cfg, log: cfg.Logger.With("component", "fleet"), wake: make(chan struct{}, 1), members: map[string]*member{}, left: map[route]*upstream.Client{},
		causes: map[string]error{},
	}
	f.counts = batch.New(batch.Config{Timeout: loadTimeout}, f.count)
	f.metrics = newMetrics(cfg.Registerer, f)
	return f
}

// Run keeps the fleet current until ctx ends, and returns nil then. It may be called once.
func (f *Fleet) Run(ctx context.Context) error {
	defer f.close()
	var group errgroup.Group
	group.Go(func() error { f.follow(ctx); return nil })
	group.Go(func() error { f.readAll(ctx); return nil })
	group.Go(func() error { f.readLoads(ctx); return nil })
	group.Go(func() error { f.watchClocks(ctx); return nil })
	return group.Wait()
}

// close waits for the readings of all relayers, and closes their clients.
func (f *Fleet) close() {
	f.mu.Lock()
	members, left := f.members, f.left
	f.members, f.left = map[string]*member{}, map[route]*upstream.Client{}
	f.mu.Unlock()
	for _, m := range members {
		m.end()
	}
	f.counts.Wait()
	for _, client := range left {
		_ = client.Close()
	}
}

// readLoads lets all members read their loads at the same time, so that they share a query of the store.
func (f *Fleet) readLoads(ctx context.Context) {
	ticker := time.NewTicker(f.cfg.Poll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		f.mu.Lock()
		for _, m := range f.members {
			m.readNow()
		}
		f.mu.Unlock()
	}
}

// count reads relayers' unfinished transactions from the store.
func (f *Fleet) count(ctx context.Context, ids []string) ([]store.Outstanding, error) {
	all, err := f.cfg.Store.Outstanding(ctx, f.cfg.SilentAfter)
	if err != nil {
		f.log.Debug("unfinished transactions not counted", "err", err)
		return nil, err
	}
	byID := make(map[string]store.Outstanding, len(all))
	for _, o := range all {
		byID[o.Relayer] = o
	}
	counts := make([]store.Outstanding, len(ids))
	for i, id := range ids {
		counts[i] = byID[id]
	}
	return counts, nil
}

func (f *Fleet) list() []*member {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]*member, 0, len(f.members))
	if time.Since(f.readAt) > f.cfg.KeepFor {
		return all
	}
	for _, m := range f.members {
		all = append(all, m)
	}
	return all
}

// many is from how many relayers on only two of them are compared.
const many = 6

// Choose implements [consumer.Relayers].
func (f *Fleet) Choose(w consumer.Want) (consumer.Choice, bool) {
	now, usual := time.Now(), f.usual.latency()
	candidates := f.list()
	rand.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	candidates = slices.DeleteFunc(candidates, func(m *member) bool { return !m.suits(w, now) })
	// A relayer whose load cannot be read is used only if there is no other.
	answering := slices.DeleteFunc(slices.Clone(candidates), (*member).silent)
	if len(answering) == 0 {
		answering = candidates
	}
	for len(answering) > 0 {
		compared := answering
		if len(compared) >= many {
			compared = compared[:2]
		}
		best := 0
		for i := range compared {
			if compared[i].cost(now, usual) < compared[best].cost(now, usual) {
				best = i
			}
		}
		if choice, ok := answering[best].take(now); ok {
			return choice, true
		}
		answering = slices.Delete(answering, best, best+1) // another goroutine has its breaker's one request
	}
	return consumer.Choice{}, false
}

// Besides implements [consumer.Relayers].
func (f *Fleet) Besides(ids []string) bool {
	return slices.ContainsFunc(f.list(), func(m *member) bool { return m.usable() && !slices.Contains(ids, m.id) })
}

// Answering reports whether any relayer answered the last reading of its load by this process.
func (f *Fleet) Answering() bool { return slices.ContainsFunc(f.list(), (*member).answering) }

// Elsewhere reports whether a relayer that has another idempotency scope, or none, could be chosen now, and answers.
func (f *Fleet) Elsewhere(scope string) bool {
	now := time.Now()
	return slices.ContainsFunc(f.list(), func(m *member) bool { return m.suits(consumer.Want{}, now) && m.answering() && m.scope() != scope })
}

// maxLeft bounds the relayers that are remembered after they have left.
const maxLeft = 256

// At implements [consumer.Relayers].
func (f *Fleet) At(at dispatch.Route) (consumer.Relayer, bool) {
	client := f.Client(at)
	if client == nil {
		return nil, false
	}
	return ofChain{client, f, at}, true
}

// maxSharing is how many relayers of one scope Sharing returns.
const maxSharing = 3

// Sharing returns live relayers that may answer about a route's transaction beside its own: the one of the same service under
// another URL, and some of the same idempotency scope. One of another chain is not asked.
func (f *Fleet) Sharing(at dispatch.Route) (sharing []*upstream.Client) {
	for _, m := range f.list() {
		switch {
		case m.url == at.URL, m.mismatched():
		case m.id == at.Relayer:
			sharing = slices.Insert(sharing, 0, m.client)
		case at.Scope != "" && m.scope() == at.Scope:
			sharing = append(sharing, m.client)
		}
	}
	return sharing[:min(len(sharing), maxSharing)]
}

// Health returns why no relayer can be chosen, and which ones are refused, at once; nil if one can and none is.
func (f *Fleet) Health() error {
	var problems []string
	switch all := f.list(); {
	case len(all) == 0:
		problems = append(problems, "no relayer is listed in Redis, or it cannot be read")
	case !slices.ContainsFunc(all, func(m *member) bool { return m.suits(consumer.Want{}, time.Now()) }):
		problems = append(problems, "every relayer fails, is paused or disabled, or has another id or network than configured, or another chain")
	}
	if problem := f.refusals(); problem != "" {
		problems = append(problems, problem)
	}
	f.mu.Lock()
	unread, undecided := f.unread, f.undecided
	f.mu.Unlock()
	if undecided != "" {
		problems = append(problems, undecided)
	}
	if unread > 0 {
		problems = append(problems, fmt.Sprintf("Redis lists %d relayers more than the %d that are read", unread, maxMembers))
	}
	if len(problems) == 0 {
		return nil
	}
	return errors.New(strings.Join(problems, "; "))
}

// Client returns the client of a route's relayer, also if that is not live any more; nil if nothing is known of it.
func (f *Fleet) Client(at dispatch.Route) *upstream.Client {
	if at.Relayer == "" || at.URL == "" {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.members[at.Relayer]; m != nil && m.url == at.URL {
		return m.client
	}
	key := route{at.Relayer, at.URL}
	client := f.left[key]
	if client == nil {
		made, err := f.cfg.Client(at.Relayer, at.URL)
		if err != nil {
			return nil
		}
		for old, c := range f.left { // any of them
			if len(f.left) < maxLeft {
				break
			}
			delete(f.left, old)
			_ = c.Close()
		}
		client, f.left[key] = made, made
	}
	return client
}

// set replaces the members by those listed. A member whose URL has changed is another relayer.
func (f *Fleet) set(ctx context.Context, all map[string]listed) {
	var gone []*member
	urls := map[string]string{}
	f.mu.Lock()
	f.readAt = time.Now()
	for id, l := range all {
		if l.err != nil {
			f.explain(id, l.err)
			continue
		}
		urls[id] = l.url
	}
	for id := range f.causes {
		if _, ok := all[id]; !ok {
			delete(f.causes, id)
		}
	}
	for id, m := range f.members {
		if urls[id] != m.url {
			gone = append(gone, m)
			delete(f.members, id)
		}
	}
	for id, url := range urls {
		if f.members[id] != nil {
			continue
		}
		client, err := f.cfg.Client(id, url)
		if err != nil {
			f.explain(id, err)
			continue
		}
		delete(f.causes, id)
		f.members[id] = newMember(ctx, f, id, url, client)
		f.log.Info("relayer joined", "service", id, "url", url)
	}
	f.mu.Unlock()
	for _, m := range gone {
		f.log.Info("relayer left", "service", m.id, "url", m.url)
		go m.end()
	}
}

// matched records whether a listed relayer has the configured id and network and the chain, and an allowed host, or why it has not.
func (f *Fleet) matched(id string, other bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if other {
		f.explain(id, err)
	} else if err == nil {
		delete(f.causes, id)
	}
}

// unusable returns how many relayers are listed and cannot be used, whatever their load and state.
func (f *Fleet) unusable() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.causes)
}

// explain logs why a listed relayer is not used, once for each cause. The caller holds mu.
func (f *Fleet) explain(id string, err error) {
	if before := f.causes[id]; before == nil || before.Error() != err.Error() {
		f.causes[id] = err
		f.log.Warn("relayer not usable", "service", id, "err", err)
	}
}

// templateURL returns the URL of a member without a status hash.
func (f *Fleet) templateURL(id string) (string, error) {
	if f.cfg.URLTemplate == "" {
		return "", errors.New("it has no status hash, and no URL template is configured")
	}
	n, ok := number(id)
	if !ok && strings.Contains(f.cfg.URLTemplate, "{N}") {
		return "", errors.New("it has no status hash, and no number for the URL template")
	}
	return strings.NewReplacer("{N}", n, "{id}", id).Replace(f.cfg.URLTemplate), nil
}
