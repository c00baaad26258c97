package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// batches measures calls with many services or keys.
func batches(ctx context.Context, s *suite) error {
	best, err := s.etcdBestTxns(ctx)
	if err != nil {
		return err
	}
	f, err := s.startFleet(ctx)
	if err != nil {
		return err
	}
	defer f.close()
	sizes, clients := []int{1_000, 10_000}, []int{1, 2, 4}
	registerRow := func(size, clients int) string {
		return fmt.Sprintf("services registered, %d a call, %s", size, plural(clients, "client"))
	}
	raftRow := raftOwn + fmt.Sprintf(": Apply of %d B, 4 callers, as services", sizes[1]*serviceBytes)
	steps := []step{
		s.onRaft(raftOwn, func(ctx context.Context, c *raftCluster) error {
			res, err := c.apply(ctx, s.load(4), sizes[1]*serviceBytes)
			if err == nil {
				s.sample(raftRow, res.PerSecond*float64(sizes[1]), "/s")
			}
			return err
		}),
		s.onEtcd(func(ctx context.Context, c *etcdCluster) error {
			for _, t := range best {
				res, err := c.txns(ctx, s.load(t.clients), t.keys)
				if err != nil {
					return err
				}
				s.sample(t.name(), res.PerSecond, "/s")
			}
			return nil
		}),
	}
	for _, size := range sizes {
		steps = append(steps, s.onRollcall(10*time.Second, func(ctx context.Context, c *rollcallCluster) error {
			for _, n := range clients {
				res, err := c.registrations(ctx, f, s.load(n), size, false)
				if err != nil {
					return err
				}
				s.sample(registerRow(size, n), res.PerSecond, "/s")
			}
			return nil
		}))
	}
	if err := s.inRounds(ctx, steps...); err != nil {
		return err
	}

	var peers, standard []string
	for _, t := range best {
		peers = append(peers, t.name())
		if t.keys <= etcdStandardOps {
			standard = append(standard, t.name())
		}
	}
	for _, size := range sizes {
		// The target applies to the best number of clients, as for etcd.
		winner := slices.MaxFunc(clients, func(a, b int) int {
			return cmp.Compare(median(s.samples[registerRow(size, a)]), median(s.samples[registerRow(size, b)]))
		})
		for _, n := range clients {
			if row := s.report(registerRow(size, n), "/s").beside(s, peers...); n == winner {
				row.atLeast(3)
				s.report(registerRow(size, n), "/s").beside(s, standard...)
			}
		}
	}
	for _, peer := range append(peers, raftRow) {
		s.report(peer, "/s")
	}
	return nil
}

// etcdTxn is a size of transaction and a number of clients.
type etcdTxn struct {
	keys, clients int
	tried         float64
}

func (t etcdTxn) name() string {
	return fmt.Sprintf("etcd: keys in transactions of %d, %s", t.keys, plural(t.clients, "client"))
}

// etcdStandardOps is etcd's default limit of operations in a transaction.
const etcdStandardOps = 128

// etcdBestTxns tries a grid for a short time each and returns the three best, and the two best of those within etcd's
// default limit.
func (s *suite) etcdBestTxns(ctx context.Context) (best []etcdTxn, err error) {
	sizes, callers := []int{50, 100, 128, 250, 500, 1000, 2500}, []int{1, 4, 16, 64}
	if s.short {
		sizes, callers = []int{100, 500, 1000}, []int{4, 16}
	}
	var grid []etcdTxn
	err = s.onEtcd(func(ctx context.Context, c *etcdCluster) error {
		for _, keys := range sizes {
			for _, clients := range callers {
				res, err := c.txns(ctx, load{Callers: clients, Warm: s.warm / 2, Window: s.window / 2}, keys)
				if err != nil {
					return err
				}
				t := etcdTxn{keys, clients, res.PerSecond}
				progress("tried %-60s %12s /s", t.name(), number(t.tried))
				grid = append(grid, t)
			}
		}
		return nil
	})(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(grid, func(a, b etcdTxn) int { return cmp.Compare(b.tried, a.tried) })
	best = slices.Clone(grid[:3])
	standard := 0
	for i, t := range grid {
		if t.keys > etcdStandardOps || standard == 2 {
			continue
		}
		if standard++; i >= 3 {
			best = append(best, t)
		}
	}
	return best, nil
}
