package main

import (
	"context"
	"time"
)

// reads measures linearizable reads of one service or key a call.
func reads(ctx context.Context, s *suite) error {
	f, err := s.startFleet(ctx)
	if err != nil {
		return err
	}
	defer f.close()
	err = s.inRounds(ctx,
		s.onBare(f, listRows),
		s.onEtcd(func(ctx context.Context, c *etcdCluster) error {
			for _, row := range etcdGetRows {
				res, err := c.gets(ctx, s.load(row.callers), row.shape)
				if err != nil {
					return err
				}
				s.sample(row.name(), res.PerSecond, "/s")
			}
			return nil
		}),
		s.onRollcall(10*time.Second, func(ctx context.Context, c *rollcallCluster) error {
			for _, row := range listRows {
				res, err := c.lists(ctx, f, s.load(row.callers), row.shared)
				if err != nil {
					return err
				}
				s.sample(row.name(), res.PerSecond, "/s")
			}
			return nil
		}))
	if err != nil {
		return err
	}
	for _, row := range listRows {
		r := s.report(row.name(), "/s").beside(s, row.etcd("linearizable get").name())
		if row.callers > 1 {
			r.atLeast(2)
		}
		s.report(row.name(), "/s").beside(s, row.bareName())
	}
	for _, row := range etcdGetRows {
		s.report(row.name(), "/s")
	}
	return nil
}
