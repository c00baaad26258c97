package main

import (
	"context"
	"fmt"
	"time"
)

// memory measures the memory of a relayer under a sustained load.
func memory(ctx context.Context, s *suite) error {
	ring, err := newRing(relayerKeys)
	if err != nil {
		return err
	}
	r, err := s.startRelayed(ctx, ring)
	if err != nil {
		return err
	}
	defer r.close()
	rate := median(s.samples[relayRow]) / 2
	if len(s.samples[relayRow]) == 0 {
		sent, mined, err := r.send(ctx, s.burst/4, 0, false)
		if err != nil {
			return err
		}
		rate = float64(s.burst/4) / mined.Sub(sent.began).Seconds() / 2
	}
	early, late := s.steady/5, s.steady
	progress("%s transactions a second for %s", number(rate), s.steady)

	load, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, _, err := r.send(load, int(rate*(late+steadySpan).Seconds()), rate, false)
		failed <- err
	}()
	resident := make(map[time.Duration]float64)
	began := time.Now()
	for _, mark := range []time.Duration{early, late} {
		if resident[mark], err = r.residentUntil(load, began.Add(mark), failed); err != nil {
			cancel()
			return err
		}
		progress("%s: %.0f MiB resident", mark, resident[mark])
	}
	if err := <-failed; err != nil {
		return err
	}
	what := fmt.Sprintf("relayer under half load: resident memory after %s", late)
	s.add(what, resident[late], "MiB").besideValue(fmt.Sprintf("after %s", early), resident[early]).atMost(1.1)
	s.add("relayer under half load: transactions", rate, "/s")
	return nil
}

// steadySpan is the time before a mark in which memory is sampled, because garbage comes and goes.
const steadySpan = 10 * time.Second

// residentUntil returns the median of the relayer's resident memory in the last seconds before end, in MiB. It fails if
// the load ends early.
func (r *relayed) residentUntil(ctx context.Context, end time.Time, ended chan error) (float64, error) {
	var samples []float64
	for time.Now().Before(end) {
		select {
		case err := <-ended:
			ended <- err
			return 0, fmt.Errorf("the load ended early: %w", err)
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(min(steadySpan/40, max(time.Until(end), time.Millisecond))):
		}
		if time.Until(end) > steadySpan {
			continue
		}
		bytes, err := r.relayer.memory()
		if err != nil {
			return 0, err
		}
		samples = append(samples, bytes/(1<<20))
	}
	return median(samples), nil
}
