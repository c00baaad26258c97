package main

import (
	"context"
	"fmt"
)

// reads: one service or key a call, linearizable.
func reads(ctx context.Context, s *suite) error {
	err := s.inRounds(ctx, func(ctx context.Context) error {
		c, err := s.startEtcd(ctx)
		if err != nil {
			return err
		}
		defer c.close()
		for _, row := range etcdGetRows {
			res, err := c.gets(ctx, s.load(row.callers), row.shape)
			if err != nil {
				return fmt.Errorf("etcd: %w", err)
			}
			s.sample(row.name(), res.PerSecond, "/s")
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, row := range etcdGetRows {
		s.report(row.name(), "/s")
	}
	return nil
}
