package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// batches: many services or keys a call.
func batches(ctx context.Context, s *suite) error {
	best, err := s.etcdBestTxns(ctx)
	if err != nil {
		return err
	}
	err = s.inRounds(ctx, func(ctx context.Context) error {
		c, err := s.startEtcd(ctx)
		if err != nil {
			return err
		}
		defer c.close()
		for _, t := range best {
			res, err := c.txns(ctx, s.load(t.clients), t.keys)
			if err != nil {
				return fmt.Errorf("etcd: %w", err)
			}
			s.sample(t.name(), res.PerSecond, "/s")
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, t := range best {
		s.report(t.name(), "/s")
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

// etcdBestTxns tries a grid for a short time each and returns the three best.
func (s *suite) etcdBestTxns(ctx context.Context) ([]etcdTxn, error) {
	sizes, callers := []int{50, 100, 128, 250, 500, 1000, 2500}, []int{1, 4, 16, 64}
	if s.short {
		sizes, callers = []int{100, 500, 1000}, []int{4, 16}
	}
	c, err := s.startEtcd(ctx)
	if err != nil {
		return nil, err
	}
	defer c.close()
	var grid []etcdTxn
	for _, keys := range sizes {
		for _, clients := range callers {
			res, err := c.txns(ctx, load{clients, s.warm / 2, s.window / 2}, keys)
			if err != nil {
				return nil, fmt.Errorf("etcd: %w", err)
			}
			t := etcdTxn{keys, clients, res.PerSecond}
			progress("tried %-60s %12s /s", t.name(), number(t.tried))
			grid = append(grid, t)
		}
	}
	slices.SortFunc(grid, func(a, b etcdTxn) int { return cmp.Compare(b.tried, a.tried) })
	return grid[:3], nil
}
