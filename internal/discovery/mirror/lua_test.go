package mirror

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// Lua in Redis has no calendar functions, so the script's formatting must match Go's.
func TestScript_RFC3339_MatchesGo(t *testing.T) {
	t.Parallel()
	script := redis.NewScript(metaLua + `
local out = {}
for i, us in ipairs(ARGV) do
  out[i] = rfc3339(tonumber(us))
end
return out`)
	times := []time.Time{
		time.Unix(0, 0), time.UnixMicro(1), time.UnixMicro(999_999),
		time.Date(2024, 2, 28, 23, 59, 59, 999_999_000, time.UTC), time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC),
		time.Date(2024, 3, 1, 0, 0, 0, 1000, time.UTC), time.Date(2023, 2, 28, 12, 0, 0, 0, time.UTC),
		time.Date(2026, 12, 31, 23, 59, 59, 0, time.UTC), time.Date(2000, 2, 29, 1, 2, 3, 4_005_000, time.UTC),
		time.Date(2100, 2, 28, 0, 0, 0, 0, time.UTC), time.Date(2100, 3, 1, 0, 0, 0, 0, time.UTC),
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		times = append(times, time.UnixMicro(rnd.Int64N(4_200_000_000_000_000)))
	}
	var args []any
	var expected []string
	for _, at := range times {
		args = append(args, at.UnixMicro())
		expected = append(expected, timefmt.Format(at))
	}
	got, err := script.Run(t.Context(), testredis.Start(t).Client(), nil, args...).StringSlice()
	require.NoError(t, err)
	require.Equal(t, expected, got)
}
