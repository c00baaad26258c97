package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// allocation: a nonce, a signature and a durable row for a transaction, in several forms on one Postgres.
func allocation(ctx context.Context, s *suite) error {
	db, err := s.startPostgres(ctx)
	if err != nil {
		return err
	}
	defer db.close()
	var steps []step
	for _, keys := range []int{1, relayerKeys} {
		for _, f := range []form{formPool, formRecorded, formSix, formTwo} {
			callers, err := s.bestCallers(ctx, db, f, keys)
			if err != nil {
				return err
			}
			name := allocationRow(f, keys)
			s.sample(name+callersSuffix, float64(callers), "")
			steps = append(steps, func(ctx context.Context) error {
				got, err := s.allocate(ctx, db, f, keys, callers, s.warm, s.window)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				s.sample(name, got.PerSecond, "/s")
				s.sample(name+latencySuffix, milliseconds(got.P50), "ms")
				s.sample(name+ownSuffix, got.Own, "µs")
				s.sample(name+postgresSuffix, got.Postgres, "µs")
				return nil
			})
		}
	}
	if err := s.inRounds(ctx, steps...); err != nil {
		return err
	}
	for _, keys := range []int{1, relayerKeys} {
		ours, six := allocationRow(formPool, keys), allocationRow(formSix, keys)
		least := map[int]float64{1: 3, relayerKeys: 2}[keys]
		s.report(ours, "/s").beside(s, six).atLeast(least)
		s.report(ours, "/s").beside(s, allocationRow(formTwo, keys))
		s.report(allocationRow(formRecorded, keys), "/s").beside(s, six)
		for _, suffix := range []string{ownSuffix, postgresSuffix} {
			s.report(ours+suffix, "µs").beside(s, six+suffix)
		}
	}
	for _, keys := range []int{1, relayerKeys} {
		for _, f := range []form{formPool, formRecorded, formSix, formTwo} {
			name := allocationRow(f, keys)
			if f != formPool && f != formRecorded {
				s.report(name, "/s")
				s.report(name+ownSuffix, "µs")
				s.report(name+postgresSuffix, "µs")
			}
			s.report(name+latencySuffix, "ms")
			s.report(name+callersSuffix, "")
		}
	}
	return nil
}

// What else is known of a way to allocate.
const (
	latencySuffix  = ": a caller's wait, p50"
	ownSuffix      = ": own processor time each"
	postgresSuffix = ": Postgres's processor time each"
	callersSuffix  = ": callers"
)

func allocationRow(f form, keys int) string {
	return map[form]string{
		formPool:     "allocated, signed and stored",
		formRecorded: "allocated, signed and stored, and what nodes said recorded",
		formSix:      "advisory lock, six round trips",
		formTwo:      "one statement to claim, one to store what was signed",
	}[f] + ", " + plural(keys, "key")
}

// bestCallers tries numbers of callers for a short time each, and returns the fastest.
func (s *suite) bestCallers(ctx context.Context, db *database, f form, keys int) (best int, err error) {
	tried := []int{1, 2, 4, 8, 16, 32, 64, 128}
	if f == formPool || f == formRecorded {
		tried = []int{64, 128, 256, 512, 1024, 2048}
	}
	if s.short {
		tried = slices.DeleteFunc(tried, func(n int) bool { return !slices.Contains([]int{4, 16, 64, 512}, n) })
	}
	var most float64
	for _, callers := range tried {
		got, err := s.allocate(ctx, db, f, keys, callers, s.warm/2, s.window/2)
		if err != nil {
			return 0, fmt.Errorf("%s, %s: %w", allocationRow(f, keys), plural(callers, "caller"), err)
		}
		progress("tried %-60s %12s /s", allocationRow(f, keys)+", "+plural(callers, "caller"), number(got.PerSecond))
		if got.PerSecond > most {
			best, most = callers, got.PerSecond
		}
	}
	return best, nil
}

// allocate runs an allocator, on a new database.
func (s *suite) allocate(ctx context.Context, db *database, f form, keys, callers int, warm, window time.Duration) (got allocated, err error) {
	const name = "allocation"
	url, err := db.fresh(ctx, name)
	if err != nil {
		return got, err
	}
	return selfJSON[allocated](ctx, s.dir, "allocator", []string{databaseVar + "=" + url}, "allocator",
		"-form", string(f), "-keys", strconv.Itoa(keys), "-callers", strconv.Itoa(callers), "-postmaster", strconv.Itoa(db.server.PID()),
		"-warm", warm.String(), "-window", window.String())
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }
