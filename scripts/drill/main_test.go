package main

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The time of a row is the one that its limit applies to. It begins with the last act, or at the row before.
func TestAwait_AfterOtherRows_TimesItsOwnPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		d := &drill{out: &out, start: time.Now()}
		shows := func(fields ...string) {
			t.Helper()
			require.Equal(t, fields, strings.Fields(out.String()))
			out.Reset()
		}
		read := func() string { return "seen" }
		time.Sleep(3 * time.Second)
		d.await("step", "seen", 4*time.Second, read)
		shows("step", "seen", "seen", "3.0", "4.0", "ok")
		time.Sleep(3 * time.Second)
		d.await("step", "seen", 2*time.Second, read)
		shows("step", "seen", "seen", "3.0", "2.0", "late")
		time.Sleep(11 * time.Second)
		d.await("step", "seen", 2*time.Second, read)
		shows("step", "seen", "seen", "11.0", "2.0", "FAIL")
		d.await("step", "expected", 2*time.Second, read)
		shows("step", "expected", "seen", "10.1", "2.0", "FAIL")
		time.Sleep(time.Second)
		d.row("step", "seen", "seen", 0, true)
		shows("step", "seen", "seen", "1.0", "-", "ok")
		require.Equal(t, 5, d.rows)
		require.Len(t, d.late, 1)
		require.Len(t, d.failed, 2)
		require.Equal(t, []string{"step", "expected", "seen", "10.1", "2.0", "FAIL"}, strings.Fields(d.failed[1]))
	})
}

// The limit applies to the cluster, not to the Docker client: its part of the act and of the last look is added.
func TestAwait_DockerIsSlow_AddsItsTimeToTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		d := &drill{out: &out}
		docker := func(takes time.Duration) { time.Sleep(takes); d.docker += takes }
		await := func(looks int, fields ...string) {
			t.Helper()
			d.begin()
			docker(2 * time.Second)
			d.await("step", "seen", time.Second, func() string {
				docker(400 * time.Millisecond)
				if looks--; looks > 0 {
					return "nothing"
				}
				return "seen"
			})
			require.Equal(t, fields, strings.Fields(out.String()))
			out.Reset()
		}
		await(1, "step", "seen", "seen", "2.4", "3.4", "ok")
		await(3, "step", "seen", "seen", "3.3", "3.4", "ok")
		await(4, "step", "seen", "seen", "3.8", "3.4", "late")
		await(15, "step", "seen", "nothing", "7.8", "3.4", "FAIL")
		require.Zero(t, d.docker)
	})
}

// A failed command ends one look of a row, but the whole step outside of it.
func TestCheck_InLookAndStep_EndsEach(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		d := &drill{out: &out, start: time.Now()}
		failure, looks := errors.New("failed"), 0
		err := d.attempt(func() {
			d.await("step", "seen", 2*time.Second, func() string {
				looks++
				if looks < 10 {
					d.check(failure)
				}
				return "seen"
			})
			d.await("step", "seen", time.Second, func() string { d.check(failure); return "seen" })
			d.check(failure)
			t.Error("check must end the attempt")
		})
		require.ErrorIs(t, err, failure)
		want := "step seen seen 0.5 2.0 ok step seen failed 5.0 1.0 FAIL"
		require.Equal(t, want, strings.Join(strings.Fields(out.String()), " "))
	})
}

// A guard trusts a command only if it is known to leave the relayer in the active set.
func TestCommandRemoves_UnknownCommand_May(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"SADD relayer:active a":       false,
		"PUBLISH relayer:events a":    false,
		"SREM relayer:active b":       false,
		"SREM relayer:active b a":     true,
		"SREM other:active a":         false,
		"DEL relayer:status:b":        false,
		"DEL relayer:active":          true,
		"HSET relayer:meta epoch 7":   false,
		"RENAME other relayer:active": true,
		"FLUSHALL":                    true,
	} {
		require.Equal(t, want, command{Args: strings.Fields(line)}.removes("a"), line)
	}
	require.EqualValues(t, 7, command{Args: strings.Fields("HSET relayer:meta epoch 7 leader a")}.epoch())
	require.Zero(t, command{Args: strings.Fields("HSET relayer:status:a epoch 7")}.epoch())
}
