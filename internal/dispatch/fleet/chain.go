package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream"
)

const (
	// chainEvery is how often a relayer without a scope is asked for its chain again: the name of its network may get another chain.
	chainEvery = time.Minute
	// askedAtOnce is how many relayers are asked for their chains at once.
	askedAtOnce = 64
	// claimEvery is how often all relayers are asked for their chains while the database has none.
	claimEvery = 5 * time.Second
	// maxNamed is how many refused relayers the metric names. Redis may list any number.
	maxNamed = 16
	// maxReported is how many of them the health names.
	maxReported = 3
)

// errOtherChain is the error of a relayer whose chain is not that of the database's transactions.
var errOtherChain = errors.New("another chain")

// identify returns the relayer behind a client, with its chain, which must be that of the database. known is what is known of it; nil if
// nothing is. A relayer with a scope is found again each time; of others, one may serve several, and known is kept while it is there. A
// chain that known has is asked again only if stale.
func (f *Fleet) identify(ctx context.Context, client *upstream.Client, known *upstream.Info, stale bool) (upstream.Info, error) {
	var info upstream.Info
	var err error
	if known == nil || known.Scope != "" {
		info, err = client.Discover(ctx)
	} else {
		info, err = client.Confirm(ctx, *known)
	}
	if err != nil || !info.Usable() { // a paused one does not call its node
		return info, err
	}
	if info.ChainID == 0 || info.Scope == "" && stale {
		if info.ChainID, err = client.Chain(ctx, info); err != nil {
			return info, err
		}
	}
	return info, f.claim(ctx, info.ChainID)
}

// claim returns an error unless a relayer's chain is that of the database. If that has none yet, the first relayer gives it its own. But
// transactions that are not final are for the chain of their relayers, which an older version did not store: then all that Redis lists
// have to answer alike, because the first one may be a stray one.
func (f *Fleet) claim(ctx context.Context, id uint64) error {
	chain, err := f.cfg.Store.Chain(ctx)
	if err == nil && chain == 0 {
		var open bool
		if open, err = f.cfg.Store.HasOpen(ctx); err == nil && open {
			chain, err = f.claimTogether(ctx)
		} else if err == nil {
			chain, err = f.cfg.Store.ClaimChain(ctx, id)
		}
	}
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.undecided = "" // another process or a setting may have decided
	f.mu.Unlock()
	if chain != id {
		return otherChain(chain, id)
	}
	return nil
}

// errNoChain is the error of a relayer while the database has no chain.
var errNoChain = errors.New("the database has no chain yet")

// claimTogether gives the database the chain of all listed relayers. One caller at a time asks them.
func (f *Fleet) claimTogether(ctx context.Context) (uint64, error) {
	if !f.claiming.TryLock() {
		return 0, errNoChain
	}
	defer f.claiming.Unlock()
	if time.Since(f.claimedAt) < claimEvery {
		return 0, errNoChain
	}
	f.claimedAt = time.Now()
	all, _, err := f.read(ctx)
	if err != nil {
		return 0, err
	}
	chains, silent := f.chains(ctx, all)
	chain, err := f.decide(ctx, chains, silent)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil && f.undecided != err.Error() {
		f.undecided = err.Error()
		f.log.Warn("no relayer is used", "err", err)
	}
	return chain, err
}

// decide gives the database, which has no chain, that of all relayers. silent is one that has not answered; "" if there is none.
func (f *Fleet) decide(ctx context.Context, chains map[uint64]string, silent string) (uint64, error) {
	ids := slices.Sorted(maps.Keys(chains))
	if len(ids) > 1 {
		return 0, fmt.Errorf("the relayers in Redis are of several chains (%s has %d, %s has %d), and the database has none yet: "+
			"set CONSUMER_CHAIN_ID, or list those of one chain",
			chains[ids[0]], ids[0], chains[ids[1]], ids[1])
	}
	open, err := f.cfg.Store.HasOpen(ctx)
	switch {
	case err != nil:
		return 0, err
	case len(ids) == 0 && silent == "":
		return 0, errNoChain
	case open && silent != "", len(ids) == 0:
		return 0, fmt.Errorf("%w, its transactions may be for another one than that of the relayers that answer, and relayer %s has not answered: "+
			"set CONSUMER_CHAIN_ID, or take it out of Redis", errNoChain, silent)
	}
	return f.cfg.Store.ClaimChain(ctx, ids[0])
}

func otherChain(chain, has uint64) error {
	return fmt.Errorf("%w: the transactions of this database are for chain %d, and the relayer has chain %d: "+
		"give its consumers another database and queue, or list it in the Redis of its chain", errOtherChain, chain, has)
}

// CheckChain returns why a process must not start: all relayers that Redis lists are of other chains than the database, or they are of
// several chains while the database has none. It gives the database the chain of its relayers, if it has none. While some do not answer
// the process starts, and refuses those of another chain: the others may be of the database's.
func (f *Fleet) CheckChain(ctx context.Context) error {
	all, _, err := f.read(ctx)
	if err != nil {
		f.log.Info("the chain of the relayers is not checked at start: Redis cannot be read", "err", err)
		return nil
	}
	chains, silent := f.chains(ctx, all)
	if len(chains) == 0 {
		return nil
	}
	chain, err := f.cfg.Store.Chain(ctx)
	if err == nil && chain == 0 {
		chain, err = f.decide(ctx, chains, silent)
	}
	if errors.Is(err, errNoChain) {
		f.log.Warn("the chain of the relayers is not checked at start", "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	if _, ok := chains[chain]; ok {
		return nil
	}
	first := slices.Min(slices.Collect(maps.Keys(chains)))
	err = fmt.Errorf("relayer %s: %w", chains[first], otherChain(chain, first))
	if silent != "" {
		f.log.Warn("no relayer of the database's chain answers", "silent", silent, "err", err)
		return nil
	}
	return err
}

// chains asks the listed relayers for their chains, and returns one relayer of each. silent is one that has not told its chain; "" if all
// have. One with another host or network than configured does not count.
func (f *Fleet) chains(ctx context.Context, all map[string]listed) (chains map[uint64]string, silent string) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	var mu sync.Mutex
	chains = map[uint64]string{}
	answered := func(id string, chain uint64, err error) {
		mu.Lock()
		defer mu.Unlock()
		switch other, ok := chains[chain]; {
		case errors.Is(err, upstream.ErrOtherHost), errors.Is(err, upstream.ErrOtherNetwork):
		case err != nil:
			f.log.Debug("chain of a relayer not read", "service", id, "err", err)
			if silent == "" || id < silent {
				silent = id
			}
		case !ok || id < other:
			chains[chain] = id
		}
	}
	var asked errgroup.Group
	asked.SetLimit(askedAtOnce)
	for id, at := range all {
		if at.err != nil {
			answered(id, 0, at.err)
			continue
		}
		asked.Go(func() error {
			chain, err := f.askChain(ctx, id, at.url)
			answered(id, chain, err)
			return nil
		})
	}
	_ = asked.Wait() // no function fails
	return chains, silent
}

// askChain asks a listed relayer for its chain.
func (f *Fleet) askChain(ctx context.Context, id, url string) (uint64, error) {
	client, err := f.cfg.Client(id, url)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	info, err := client.Discover(ctx)
	if err == nil && info.ChainID == 0 {
		info.ChainID, err = client.Chain(ctx, info)
	}
	return info.ChainID, err
}

// ofChain is a relayer whose list is read only while it has the chain of the database. That of another chain's relayer would prove that a
// transaction was not done, or have an equal call of another chain.
type ofChain struct {
	*upstream.Client
	fleet *Fleet
	at    dispatch.Route
}

// Lookup implements [consumer.Relayer].
func (r ofChain) Lookup(ctx context.Context, ref upstream.Ref, m upstream.Match) ([]upstream.Transaction, error) {
	if ref.Scope == "" {
		var err error
		if ref.Network, err = r.network(ctx, ref.ID); err != nil {
			return nil, err
		}
	}
	return r.Client.Lookup(ctx, ref, m)
}

// network returns the network of a relayer that has the chain.
func (r ofChain) network(ctx context.Context, id string) (string, error) {
	if known := r.fleet.known(r.at); known.RelayerID == id && known.ChainID != 0 {
		return known.Network, nil
	}
	info, err := r.Relayer(ctx, id)
	if err == nil && info.ChainID == 0 {
		info.ChainID, err = r.Chain(ctx, info)
	}
	if err != nil {
		return "", err
	}
	return info.Network, r.fleet.claim(ctx, info.ChainID)
}

// known returns what is known of the live relayer of a route; zero if nothing is.
func (f *Fleet) known(at dispatch.Route) upstream.Info {
	f.mu.Lock()
	m := f.members[at.Relayer]
	f.mu.Unlock()
	if m == nil || m.url != at.URL {
		return upstream.Info{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.info == nil {
		return upstream.Info{}
	}
	return *m.info
}

// refusal returns the kind of a cause for which a listed relayer gets neither the key nor a transaction; "" if it is another one.
func refusal(cause error) string {
	switch {
	case errors.Is(cause, upstream.ErrOtherHost):
		return "host"
	case errors.Is(cause, errOtherChain):
		return "chain"
	default:
		return ""
	}
}

// refused returns the kinds of the refusals, by the ids of their relayers.
func (f *Fleet) refused() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	kinds := map[string]string{}
	for id, cause := range f.causes {
		if kind := refusal(cause); kind != "" {
			kinds[id] = kind
		}
	}
	return kinds
}

// refusals names the first refused relayers; "" if there are none.
func (f *Fleet) refusals() string {
	kinds := f.refused()
	if len(kinds) == 0 {
		return ""
	}
	var named []string
	for _, id := range slices.Sorted(maps.Keys(kinds)) {
		why := map[string]string{"host": "its host is not in CONSUMER_RELAYER_HOSTS", "chain": "it has another chain"}[kinds[id]]
		if named = append(named, fmt.Sprintf("%q (%s)", id, why)); len(named) == maxReported {
			break
		}
	}
	return fmt.Sprintf("%d relayers in Redis are refused: %s", len(kinds), strings.Join(named, ", "))
}

// refusedCollector exports a fleet's refused relayers.
type refusedCollector struct {
	fleet *Fleet
	desc  *prometheus.Desc
}

// Describe implements [prometheus.Collector].
func (c refusedCollector) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

// Collect implements [prometheus.Collector].
func (c refusedCollector) Collect(out chan<- prometheus.Metric) {
	kinds := c.fleet.refused()
	ids := slices.Sorted(maps.Keys(kinds))
	for _, id := range ids[:min(len(ids), maxNamed)] {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, 1, strings.ToValidUTF8(id, "?"), kinds[id])
	}
}
