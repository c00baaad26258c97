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

	"github.com/rollcall-dev/rollcall/internal/relay"
	"github.com/rollcall-dev/rollcall/internal/relay/upstream"
)

const (
	// chainEvery is how often a relayer without a scope is asked for its chain again: the name of its network may get another chain.
	chainEvery = time.Minute
	// maxChecked is how many relayers CheckChain asks.
	maxChecked = 64
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
	chain, err := f.cfg.Store.ClaimChain(ctx, info.ChainID)
	if err == nil && chain != info.ChainID {
		err = otherChain(chain, info.ChainID)
	}
	return info, err
}

func otherChain(chain, has uint64) error {
	return fmt.Errorf("%w: the transactions of this database are for chain %d, and the relayer has chain %d: "+
		"give its consumers another database and queue, or list it in the Redis of its chain", errOtherChain, chain, has)
}

// CheckChain returns why a process must not start: the relayers that Redis lists, and that answer, are of other chains than the database,
// or of several chains while the database has none. It gives the database the chain of its relayers, if it has none.
func (f *Fleet) CheckChain(ctx context.Context) error {
	all, _, err := f.read(ctx)
	if err != nil {
		f.log.Info("the chain of the relayers is not checked at start: Redis cannot be read", "err", err)
		return nil
	}
	chains := f.chains(ctx, all)
	if len(chains) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(chains))
	chain, err := f.cfg.Store.Chain(ctx)
	if err == nil && chain == 0 {
		if len(ids) > 1 {
			return fmt.Errorf("the relayers in Redis are of several chains (%s has %d, %s has %d), and the database has none yet: set CONSUMER_NETWORK, or list those of one chain",
				chains[ids[0]], ids[0], chains[ids[1]], ids[1])
		}
		chain, err = f.cfg.Store.ClaimChain(ctx, ids[0])
	}
	if err != nil {
		return err
	}
	if _, ok := chains[chain]; !ok {
		return fmt.Errorf("relayer %s: %w", chains[ids[0]], otherChain(chain, ids[0]))
	}
	return nil
}

// chains asks the listed relayers for their chains, and returns one relayer of each.
func (f *Fleet) chains(ctx context.Context, all map[string]listed) map[uint64]string {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	var mu sync.Mutex
	chains := map[uint64]string{}
	var asked errgroup.Group
	for i, id := range slices.Sorted(maps.Keys(all)) {
		if i == maxChecked {
			break
		}
		if all[id].err != nil {
			continue
		}
		client, err := f.cfg.Client(id, all[id].url)
		if err != nil {
			continue // which set reports
		}
		asked.Go(func() error {
			defer client.Close()
			info, err := client.Discover(ctx)
			if err == nil && info.ChainID == 0 {
				info.ChainID, err = client.Chain(ctx, info)
			}
			if err != nil {
				f.log.Debug("chain of a relayer not read", "service", id, "err", err)
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if other, ok := chains[info.ChainID]; !ok || id < other {
				chains[info.ChainID] = id
			}
			return nil
		})
	}
	_ = asked.Wait() // no function fails
	return chains
}

// ofChain is a relayer whose list is read only while it has the chain of the database. That of another chain's relayer would prove that a
// transaction was not done, or have an equal call of another chain.
type ofChain struct {
	*upstream.Client
	fleet *Fleet
	at    relay.Route
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
	chain, err := r.fleet.cfg.Store.ClaimChain(ctx, info.ChainID)
	if err == nil && chain != info.ChainID {
		err = otherChain(chain, info.ChainID)
	}
	return info.Network, err
}

// known returns what is known of the live relayer of a route; zero if nothing is.
func (f *Fleet) known(at relay.Route) upstream.Info {
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
