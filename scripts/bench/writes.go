package main

import (
	"context"
	"fmt"
	"time"
)

// writes measures calls with one service, key or command.
func writes(ctx context.Context, s *suite) error {
	f, err := s.startFleet(ctx)
	if err != nil {
		return err
	}
	defer f.close()
	var steps []step
	for _, variant := range raftVariants {
		steps = append(steps, s.onRaft(variant, func(ctx context.Context, c *raftCluster) error {
			for _, callers := range []int{1, 64} {
				res, err := c.apply(ctx, s.load(callers), serviceBytes)
				if err != nil {
					return err
				}
				s.sample(raftRow(variant, callers), res.PerSecond, "/s")
			}
			return nil
		}))
	}
	steps = append(steps,
		s.onBare(f, registerRows),
		s.onEtcd(func(ctx context.Context, c *etcdCluster) error {
			for _, row := range etcdPutRows {
				res, err := c.puts(ctx, s.load(row.callers), row.shape)
				if err != nil {
					return err
				}
				s.sample(row.name(), res.PerSecond, "/s")
			}
			return nil
		}),
		s.onRollcall(10*time.Second, func(ctx context.Context, c *rollcallCluster) error {
			for _, row := range registerRows {
				res, err := c.registrations(ctx, f, s.load(row.callers), 1, row.shared)
				if err != nil {
					return err
				}
				s.sample(row.name(), res.PerSecond, "/s")
			}
			return nil
		}))
	if err := s.inRounds(ctx, steps...); err != nil {
		return err
	}

	for _, row := range registerRows {
		s.report(row.name(), "/s").beside(s, raftRow(raftOwn, row.callers)).atLeast(0.7)
		s.report(row.name(), "/s").beside(s, raftRow(raftPlain, row.callers), raftRow(raftPipelined, row.callers))
		s.report(row.name(), "/s").beside(s, row.bareName())
		if row.callers > 1 {
			s.report(row.name(), "/s").beside(s, row.etcd("put").name()).atLeast(1.8)
		}
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

// callRow is a kind of call to Rollcall, from a number of clients, each with its own connection unless shared.
type callRow struct {
	what    string
	callers int
	shared  bool
}

const (
	registerOne = "RegisterServices of one"
	listOne     = "ListServices of one id"
)

var (
	registerRows = []callRow{{registerOne, 1, false}, {registerOne, 64, false}, {registerOne, 64, true}}
	listRows     = []callRow{{listOne, 1, false}, {listOne, 64, false}, {listOne, 64, true}}
)

func (r callRow) name() string { return r.what + ", " + r.clients() }

func (r callRow) clients() string {
	if r.callers == 1 {
		return "1 client"
	}
	return fmt.Sprintf("%d clients%s", r.callers, etcdShape{shared: r.shared})
}

// etcd returns the same kind of call for etcd.
func (r callRow) etcd(what string) etcdRow {
	return etcdRow{what, r.callers, etcdShape{shared: r.shared}}
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

var (
	etcdPutRows = []etcdRow{
		{"put", 1, etcdShape{}},
		{"put", 64, etcdShape{}},
		{"put", 64, etcdShape{shared: true}},
		{"put", 64, etcdShape{spread: true}},
	}
	etcdGetRows = []etcdRow{
		{"linearizable get", 1, etcdShape{}},
		{"linearizable get", 64, etcdShape{}},
		{"linearizable get", 64, etcdShape{shared: true}},
		{"linearizable get", 64, etcdShape{spread: true}},
		{"linearizable get", 64, etcdShape{shared: true, spread: true}},
	}
)

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
