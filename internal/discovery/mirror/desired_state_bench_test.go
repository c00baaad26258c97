package mirror

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkStatusOf writes the hashes of a whole fleet, as after a flush of Redis. The cost of one hash must not
// depend on the size of the fleet.
func BenchmarkStatusOf(b *testing.B) {
	for _, fleet := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprint(fleet), func(b *testing.B) {
			entries := make([]*Entry, fleet)
			for i := range entries {
				entries[i] = &Entry{ID: fmt.Sprintf("relayer-%d", i), Kind: "relayer", Status: Unknown}
			}
			for b.Loop() {
				l := newDesiredState(1)
				l.update(entries, nil, time.Now())
				for _, more := l.pending(); more; _, more = l.pending() {
					l.applied(l.take(OpStatus), nil, time.Now())
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*fleet), "ns/service")
		})
	}
}
