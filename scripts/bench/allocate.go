package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// allocation measures several forms of allocation on one Postgres: a nonce, a signature and a durable row per
// transaction.
func allocation(ctx context.Context, s *suite) error {
	db, err := s.startPostgres(ctx)
	if err != nil {
		return err
	}
	defer db.close()
	var steps []step
	var all []contender
	for _, keys := range []int{1, relayerKeys} {
		for _, f := range forms {
			best, err := s.bestContenders(ctx, db, f, keys)
			if err != nil {
				return err
			}
			all = append(all, best...)
		}
	}
	for _, c := range all {
		steps = append(steps, func(ctx context.Context) error {
			got, err := s.allocate(ctx, db, c, s.warm, s.window)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name(), err)
			}
			s.sample(c.name(), got.PerSecond, "/s")
			s.sample(c.name()+latencySuffix, milliseconds(got.P50), "ms")
			s.sample(c.name()+ownSuffix, got.Own, "µs")
			s.sample(c.name()+postgresSuffix, got.Postgres, "µs")
			return nil
		})
	}
	if err := s.inRounds(ctx, steps...); err != nil {
		return err
	}
	for _, keys := range []int{1, relayerKeys} {
		for _, f := range forms {
			s.elect(all, f, keys)
		}
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
		for _, f := range forms {
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

// Suffixes of the rows beside a way to allocate.
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

// contender is a form with a number of callers.
type contender struct {
	form          form
	keys, callers int
}

func (c contender) name() string {
	return allocationRow(c.form, c.keys) + ", " + plural(c.callers, "caller")
}

// bestContenders tries numbers of callers for a short time each, and returns the two fastest. The short form tries
// none, because its figures are compared with nothing.
func (s *suite) bestContenders(ctx context.Context, db *database, f form, keys int) ([]contender, error) {
	tried := []int{1, 2, 4, 8, 16, 32, 64, 128}
	if f == formPool || f == formRecorded {
		tried = []int{64, 128, 256, 512, 1024, 2048}
	}
	if s.short {
		return []contender{{f, keys, tried[len(tried)/2]}}, nil
	}
	var all []contender
	rates := make(map[contender]float64)
	for _, callers := range tried {
		c := contender{f, keys, callers}
		got, err := s.allocate(ctx, db, c, s.warm/2, s.window/2)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name(), err)
		}
		progress("tried %-60s %12s /s", c.name(), number(got.PerSecond))
		all, rates[c] = append(all, c), got.PerSecond
	}
	slices.SortFunc(all, func(a, b contender) int { return cmp.Compare(rates[b], rates[a]) })
	return all[:2], nil
}

// elect uses the faster contender's samples as those of its form.
func (s *suite) elect(all []contender, f form, keys int) {
	var winner contender
	for _, c := range all {
		if c.form == f && c.keys == keys && (winner.callers == 0 || median(s.samples[c.name()]) > median(s.samples[winner.name()])) {
			winner = c
		}
	}
	row := allocationRow(f, keys)
	for _, suffix := range []string{"", latencySuffix, ownSuffix, postgresSuffix} {
		s.samples[row+suffix] = s.samples[winner.name()+suffix]
	}
	s.samples[row+callersSuffix] = []float64{float64(winner.callers)}
}

// allocate runs an allocator on a new database.
func (s *suite) allocate(ctx context.Context, db *database, c contender, warm, window time.Duration) (got allocated, err error) {
	url, err := db.fresh(ctx, "allocation")
	if err != nil {
		return got, err
	}
	return selfJSON[allocated](ctx, s.dir, "allocator", []string{databaseVar + "=" + url}, "allocator",
		"-form", string(c.form), "-keys", strconv.Itoa(c.keys), "-callers", strconv.Itoa(c.callers),
		"-postmaster", strconv.Itoa(db.server.PID()), "-warm", warm.String(), "-window", window.String())
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }
