package main

import (
	"context"
	"fmt"
)

// writes: one service, key or command a call.
func writes(ctx context.Context, s *suite) error {
	var steps []func(context.Context) error
	for _, variant := range raftVariants {
		steps = append(steps, func(ctx context.Context) error {
			c, err := s.startRaft(ctx, variant)
			if err != nil {
				return err
			}
			defer c.close()
			for _, callers := range []int{1, 64} {
				res, err := c.apply(ctx, s.load(callers), serviceBytes)
				if err != nil {
					return fmt.Errorf("%s: %w", variant, err)
				}
				s.sample(raftRow(variant, callers), res.PerSecond, "/s")
			}
			return nil
		})
	}
	steps = append(steps, func(ctx context.Context) error {
		c, err := s.startEtcd(ctx)
		if err != nil {
			return err
		}
		defer c.close()
		for _, row := range etcdPutRows {
			res, err := c.puts(ctx, s.load(row.callers), row.shape)
			if err != nil {
				return fmt.Errorf("etcd: %w", err)
			}
			s.sample(row.name(), res.PerSecond, "/s")
		}
		return nil
	})
	if err := s.inRounds(ctx, steps...); err != nil {
		return err
	}
	for _, callers := range []int{1, 64} {
		for _, variant := range raftVariants {
			s.report(raftRow(variant, callers), "/s")
		}
	}
	for _, row := range etcdPutRows {
		s.report(row.name(), "/s")
	}
	return nil
}

func raftRow(variant string, callers int) string {
	return fmt.Sprintf("%s: Apply of %d B, %s", variant, serviceBytes, plural(callers, "caller"))
}

// etcdRow is a kind of call in one shape.
type etcdRow struct {
	what    string
	callers int
	shape   etcdShape
}

func (r etcdRow) name() string {
	if r.callers == 1 {
		return fmt.Sprintf("etcd: %s, 1 client", r.what)
	}
	return fmt.Sprintf("etcd: %s, %d clients%s", r.what, r.callers, r.shape)
}

var etcdPutRows = []etcdRow{
	{"put", 1, etcdShape{}},
	{"put", 64, etcdShape{}},
	{"put", 64, etcdShape{shared: true}},
	{"put", 64, etcdShape{spread: true}},
}

var etcdGetRows = []etcdRow{
	{"linearizable get", 1, etcdShape{}},
	{"linearizable get", 64, etcdShape{}},
	{"linearizable get", 64, etcdShape{shared: true}},
	{"linearizable get", 64, etcdShape{spread: true}},
	{"linearizable get", 64, etcdShape{shared: true, spread: true}},
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
