package main

import (
	"fmt"
	"time"
)

// steadySpan is the time before a mark in which memory is sampled, because garbage comes and goes.
const steadySpan = 10 * time.Second

// memory measures the memory of a relayer under a sustained load.
func memory(t *trial) {
	r := t.startRelayed(relayerKeys)
	rate := median(t.samples[relayRow]) / 2
	if len(t.samples[relayRow]) == 0 {
		posts, mined := r.send(t, t.burst/4, 0, false)
		rate = float64(t.burst/4) / mined.Sub(posts.Began).Seconds() / 2
	}
	early, late := t.steady/5, t.steady
	ended, began := make(chan error, 1), time.Now()
	go func() {
		ended <- t.try(t.ctx, func(t *trial) { r.send(t, int(rate*(late+steadySpan).Seconds()), rate, false) })
	}()
	// mebibytes returns the median of the relayer's resident memory before a mark.
	mebibytes := func(mark time.Duration) float64 {
		var samples []float64
		t.pause(time.Until(began.Add(mark - steadySpan)))
		for ; time.Since(began) < mark; t.pause(steadySpan / 40) {
			samples = append(samples, t.resident(r.relayer.PID())/(1<<20))
		}
		return median(samples)
	}
	first, last := mebibytes(early), mebibytes(late)
	t.check(<-ended)
	t.add(fmt.Sprintf("relayer under half load: resident memory after %s", late), last, "MiB").
		beside(fmt.Sprintf("after %s", early), first).atMost(1.1)
	t.add("relayer under half load: transactions", rate, "/s")
}
