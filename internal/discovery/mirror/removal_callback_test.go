package mirror_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror/mirrortest"
)

// Removals must be reported once they are true: not while Redis is away, not after a refused write, and also after a
// write whose answer was lost.
func TestRemoved_WriteFailsOrSucceeds_ReportsRemovalsOnceTrue(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(do func()) error{
		"not sent":        func(func()) error { return errAway },
		"answer lost":     func(do func()) error { do(); return errAway },
		"refused by fate": func(func()) error { return &mirror.ReplyError{Err: errAway} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := mirrortest.NewMemory()
				var removed []mirror.Removal // by Run, while the test waits
				w := start(t, mirror.Config{Store: store, Removed: func(r []mirror.Removal) { removed = append(removed, r...) }})
				w.Update(entries(mirror.Healthy, "a", "b", "c"), nil)
				settle(time.Second)
				require.Empty(t, removed)

				store.SetHook(func(_ context.Context, op mirror.Op, do func()) error {
					if op == mirror.OpChange {
						return fail(do)
					}
					return errAway
				})
				checked := time.Now()
				ill := entries(mirror.Unhealthy, "a")
				ill[0].LastCheck, ill[0].Reason = checked, "status 500"
				moved := entries(mirror.Healthy, "c")
				moved[0].Kind = "signer"
				w.Update(slices.Concat(ill, moved), []string{"b"})
				settle(10 * time.Second)
				require.Empty(t, removed, "the removal is not confirmed yet")
				store.SetHook(nil)
				settle(10 * time.Second)
				require.Empty(t, store.Members(active))
				require.Equal(t, []string{"c"}, store.Members("signer:active"))
				require.ElementsMatch(t, []mirror.Removal{
					{ID: "a", Kind: "relayer", URL: "http://a", Reason: "status 500", Checked: checked},
					{ID: "b", Kind: "relayer", URL: "http://b", Reason: "deregistered"},
				}, removed)
				settle(time.Minute)
				require.Len(t, removed, 2, "once")
			})
		})
	}
}
