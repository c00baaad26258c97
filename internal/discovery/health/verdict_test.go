package health

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestVerdict_DefaultConfig_ChangesOnEachResult(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		c := start(t, w, Config{})
		c.Set(relayers(1)...)
		pause(0)
		r := take(c)["relayer-0"]
		require.Equal(t, Up, r.Verdict)
		require.Zero(t, r.Failures)
		require.EqualValues(t, 1, r.Version)
		require.Equal(t, "relayer", r.Kind)

		w.set("*", fails(answer("status 503")))
		pause(20 * time.Second)
		r = take(c)["relayer-0"]
		require.Equal(t, Down, r.Verdict)
		require.Equal(t, 2, r.Failures)
		require.Equal(t, "status 503", r.Reason)

		w.set("*", nil)
		pause(10 * time.Second)
		r = take(c)["relayer-0"]
		require.Equal(t, Up, r.Verdict)
		require.Zero(t, r.Failures)
		require.Empty(t, r.Reason)
	})
}

func TestVerdict_RiseAndFall_CountConsecutiveResults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		c := start(t, w, Config{Rise: 2, Fall: 3})
		c.Set(relayers(1)...)
		pause(0)
		require.Equal(t, Up, take(c)["relayer-0"].Verdict, "a target is up after its first success")
		pause(11 * time.Second) // past its first phase
		take(c)

		w.set("*", hangs)
		n := len(w.checks("relayer-0"))
		pause(10 * time.Second)
		at := w.checks("relayer-0")[n:]
		// Removal takes at most interval + fall × timeout + gaps.
		require.GreaterOrEqual(t, len(at), 3)
		require.Equal(t, 750*time.Millisecond, at[1].Sub(at[0]))
		require.Equal(t, 750*time.Millisecond, at[2].Sub(at[1]))
		pause(2 * time.Second)
		require.Equal(t, Down, take(c)["relayer-0"].Verdict)

		w.set("*", nil)
		n = len(w.checks("relayer-0"))
		pause(10*time.Second + reprobeGap)
		at = w.checks("relayer-0")[n:]
		require.Equal(t, reprobeGap, at[1].Sub(at[0]))
		require.Equal(t, Up, take(c)["relayer-0"].Verdict)
	})
}

func TestVerdict_FailuresBelowFall_ChangeNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		w := new(world)
		w.set("*", func(context.Context) error {
			if n.Add(1)%3 == 0 {
				return nil
			}
			return answer("status 500")
		})
		c := start(t, w, Config{Fall: 3})
		c.Set(relayers(1)...)
		pause(time.Second)
		require.Equal(t, Up, take(c)["relayer-0"].Verdict)
		for range 20 {
			pause(5 * time.Second)
			for _, r := range take(c) {
				require.Equal(t, Up, r.Verdict)
			}
		}
	})
}

func TestVerdict_Unknown_NeedsFallFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		w.set("*", fails(answer("status 500")))
		c := start(t, w, Config{Fall: 2})
		c.Set(relayers(1)...)
		pause(0)
		require.Equal(t, Unknown, take(c)["relayer-0"].Verdict)
		pause(reprobeGap)
		require.Equal(t, Down, take(c)["relayer-0"].Verdict)
	})
}

func TestVerdict_NewURL_IsUnknownUntilChecked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		w.set("http://old", after(400*time.Millisecond, nil))
		w.set("http://new", after(100*time.Millisecond, answer("status 503")))
		c := start(t, w, Config{})
		c.Set(Target{ID: "a", URL: "http://old", Version: 1})
		pause(300 * time.Millisecond)
		// The check of the old URL is running, and succeeds later.
		c.Set(Target{ID: "a", URL: "http://new", Version: 2})
		pause(150 * time.Millisecond)
		r := take(c)["a"]
		require.Equal(t, Down, r.Verdict)
		require.EqualValues(t, 2, r.Version)
		pause(300 * time.Millisecond)
		require.Empty(t, take(c), "the result for the old URL is dropped")

		// The same URL under a new version keeps the verdict and is not checked out of turn.
		n := len(w.checks("a"))
		c.Set(Target{ID: "a", URL: "http://new", Version: 3})
		pause(0)
		require.Len(t, w.checks("a"), n)
		pause(10 * time.Second)
		r = take(c)["a"]
		require.Equal(t, Down, r.Verdict)
		require.EqualValues(t, 3, r.Version)
		require.Equal(t, 2, r.Failures)
	})
}

func TestRemove_PendingResult_IsDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := new(world)
		w.set("*", after(400*time.Millisecond, nil))
		c := start(t, w, Config{})
		c.Set(relayers(3)...)
		pause(200 * time.Millisecond)
		c.Remove("relayer-0", "absent") // while it is being checked
		pause(300 * time.Millisecond)
		c.Remove("relayer-1") // while its result is pending
		require.Len(t, take(c), 1)
		n0, n1 := len(w.checks("relayer-0")), len(w.checks("relayer-1"))
		pause(30 * time.Second)
		require.Len(t, w.checks("relayer-0"), n0)
		require.Len(t, w.checks("relayer-1"), n1)
		// It must be a new target when it returns.
		c.Set(relayers(1)...)
		pause(0)
		require.Len(t, w.checks("relayer-0"), n0+1)
	})
}
