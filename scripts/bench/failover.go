package main

import (
	"context"
	"fmt"
)

// failover: kill -9 of the leader.
func failover(ctx context.Context, s *suite) error {
	const etcdRow = "etcd: leader killed to next write"
	for range s.kills {
		c, err := s.startEtcd(ctx)
		if err != nil {
			return err
		}
		took, err := c.failover(ctx)
		c.close()
		if err != nil {
			return fmt.Errorf("etcd: %w", err)
		}
		s.sample(etcdRow, took.Seconds(), "s")
	}
	s.report(etcdRow, "s")
	return nil
}
