package fleet

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// clockPolls is after how many polls the clocks are looked at.
	clockPolls = 30
	// clockOff is the offset from which a clock is warned about. It is measured to two seconds at worst.
	clockOff = 2 * time.Second
)

// clocks returns how far the clocks of the live relayers are ahead, by the ids of their services, as far as they are measured.
func (f *Fleet) clocks() map[string]time.Duration {
	ahead := map[string]time.Duration{}
	for _, m := range f.list() {
		if c, ok := m.client.Clock(); ok {
			ahead[m.id] = c.Offset()
		}
	}
	return ahead
}

// watchClocks passes the relayers' clocks on, and warns about those that are off, until ctx ends.
func (f *Fleet) watchClocks(ctx context.Context) {
	ticker := time.NewTicker(clockPolls * f.cfg.Poll)
	defer ticker.Stop()
	warned := map[string]time.Duration{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		ahead := f.clocks()
		for id, d := range ahead {
			switch was, known := warned[id]; {
			case d.Abs() >= clockOff && (!known || (d-was).Abs() >= clockOff):
				f.log.Warn("a relayer's clock is off; its times are converted", "service", id, "ahead", d.Round(time.Second).String())
				warned[id] = d
			case d.Abs() < clockOff && known:
				f.log.Info("a relayer's clock is right again", "service", id)
				delete(warned, id)
			}
		}
		for id := range warned {
			if _, live := ahead[id]; !live {
				delete(warned, id)
			}
		}
		if f.cfg.Clocks == nil || len(ahead) == 0 {
			continue
		}
		if err := f.cfg.Clocks(ctx, ahead); err != nil && ctx.Err() == nil {
			f.log.Warn("clocks of relayers not stored: the API compares their webhooks' times without them", "err", err)
		}
	}
}

// clockCollector reports the offset of each relayer's clock.
type clockCollector struct {
	fleet *Fleet
	desc  *prometheus.Desc
}

func newClockCollector(f *Fleet) clockCollector {
	return clockCollector{f, prometheus.NewDesc("rollcall_relay_relayer_clock_offset_seconds",
		"How far each relayer's clock is ahead of this process's, by the Date of its answers; 0 below two seconds.", []string{"relayer"}, nil)}
}

func (c clockCollector) Describe(to chan<- *prometheus.Desc) { to <- c.desc }

func (c clockCollector) Collect(to chan<- prometheus.Metric) {
	for id, d := range c.fleet.clocks() {
		to <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, d.Seconds(), id)
	}
}
