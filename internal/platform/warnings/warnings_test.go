package warnings_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/warnings"
)

func TestLimit_RepeatedWarnings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		log := slog.New(warnings.Limit(slog.NewTextHandler(&out, nil)))
		tracker, pool := log.With("component", "tracker"), log.With("component", "pool")
		count := func(text string) int { return strings.Count(out.String(), text) }
		for range 90 { // a minute and a half
			tracker.Warn("round failed", "err", errors.New("no database"))
			pool.Warn("keys not registered", "err", errors.New("no database"))
			tracker.Warn("round failed", "err", errors.New("read tcp 127.0.0.1:"+fmt.Sprint(30_000+time.Now().Unix()%1000)+"->127.0.0.1:1: reset"))
			<-time.After(time.Second)
		}
		require.Equal(t, 2, count("no database"))
		require.Equal(t, 2, count("reset"))
		require.Contains(t, out.String(), "omitted=119")

		// Other levels, other endpoints, and lines about one transaction are not limited.
		out.Reset()
		for range 3 {
			log.Info("started", "err", "a")
			log.Warn("transaction not signed", "tx", 1, "err", "b")
			log.Warn("without a cause")
			log.With("endpoint", "n1").Warn("endpoint failed", "err", "c")
			log.With("endpoint", "n2").Warn("endpoint failed", "err", "c")
		}
		require.Equal(t, []int{3, 3, 3, 1, 1}, []int{count("started"), count("signed"), count("without"), count("n1"), count("n2")})

		// The number of stored causes is limited.
		out.Reset()
		for i := range 3000 {
			log.Warn("failed", "err", fmt.Sprintf("cause %d.", i))
		}
		log.Warn("failed", "err", "cause 2999.")
		require.Equal(t, 3000, count("failed"))
		log.WithGroup("g").Warn("failed", "err", "cause 2999.")
		require.Equal(t, 3001, count("failed"))
	})
}
