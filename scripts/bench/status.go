package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// status measures GET /status with a large fleet, from the leader and from a follower, which asks the leader.
func status(ctx context.Context, s *suite) error {
	f, err := s.startFleet(ctx)
	if err != nil {
		return err
	}
	defer f.close()
	c, err := s.startRollcall(ctx, 10*time.Second)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.fill(ctx, f, checkedServices); err != nil {
		return err
	}
	leader, _, err := c.leader(ctx)
	if err != nil {
		return err
	}
	url := func(node int) string { return "http://" + c.http[node] + "/status" }
	err = until(ctx, 30*time.Second, func(ctx context.Context) error {
		body, err := httpGet(ctx, url(leader))
		if err != nil {
			return err
		}
		var report struct{ TotalConfigured, TotalActive int }
		if err := json.Unmarshal(body, &report); err != nil {
			return err
		}
		if report.TotalConfigured != checkedServices || report.TotalActive != checkedServices {
			return fmt.Errorf("%d of %d active", report.TotalActive, report.TotalConfigured)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, from := range []struct {
		name string
		node int
	}{{"leader", leader}, {"follower", (leader + 1) % len(c.nodes)}} {
		size, refused := 0, 0
		var took []float64
		// Readers come at intervals, not one directly after the other.
		for deadline := time.Now().Add(3 * s.window); time.Now().Before(deadline); pause(ctx, 10*time.Millisecond) {
			began := time.Now()
			body, err := httpGet(ctx, url(from.node))
			took = append(took, ms(time.Since(began)))
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil:
				refused++ // 503: a follower that got no answer from the leader in time
			default:
				size = len(body)
			}
		}
		what := "/status with 10,000 services, from the " + from.name
		s.add(what+", p99", quantile(took, 0.99), "ms").within(20)
		s.add(what+", median", quantile(took, 0.5), "ms")
		s.add(what+", size", float64(size)/1e6, "MB")
		s.add(what+", refused for want of a leader", float64(refused), "")
	}
	return nil
}
