package e2e

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

// scriptCall is one run of the mirror's writing script, in MONITOR's output.
type scriptCall struct {
	Op     string `json:"op"`
	Leader string `json:"leader"`
	Epoch  uint64 `json:"epoch"`
	Seq    uint64 `json:"seq"`
	// writes are the commands that changed something; none if the fence rejected the call.
	writes []testredis.Command
}

// scriptCalls returns the runs of the mirror's writing script. A command that writes from another script fails the
// test.
func scriptCalls(t testing.TB, commands []testredis.Command) (calls []scriptCall) {
	t.Helper()
	reading := false // the running script is not the writing one
	for _, cmd := range commands {
		switch {
		case !cmd.Script && (cmd.Args[0] == "EVALSHA" || cmd.Args[0] == "EVAL"):
			keys, err := strconv.Atoi(cmd.Args[2])
			require.NoError(t, err)
			var call scriptCall
			first := cmd.Args[3+keys:]
			if reading = len(first) == 0 || json.Unmarshal([]byte(first[0]), &call) != nil; !reading {
				calls = append(calls, call)
			}
		case cmd.Script && changesSomething(cmd):
			require.False(t, reading, "another script writes: %q", cmd.Args)
			last := &calls[len(calls)-1]
			last.writes = append(last.writes, cmd)
		}
	}
	return calls
}

func changesSomething(cmd testredis.Command) bool {
	return !slices.Contains([]string{"TIME", "TYPE", "HMGET", "SMEMBERS", "SCARD"}, cmd.Args[0])
}

// requireFenced checks that no call wrote under a lower epoch than an earlier write, and that an epoch had one writer.
// It returns how many calls the fence rejected.
func requireFenced(t testing.TB, calls []scriptCall) (refused int) {
	t.Helper()
	var epoch uint64
	var leader string
	for _, c := range calls {
		if len(c.writes) == 0 {
			refused++
			continue
		}
		require.GreaterOrEqual(t, c.Epoch, epoch, "%s of %s wrote under epoch %d after %s had under %d", c.Op, c.Leader, c.Epoch, leader, epoch)
		if c.Epoch == epoch {
			require.Equal(t, leader, c.Leader, "two leaders wrote under epoch %d", epoch)
		}
		epoch, leader = c.Epoch, c.Leader
	}
	return refused
}

// wroteUnder reports whether anything was written under an epoch.
func wroteUnder(calls []scriptCall, epoch uint64) bool {
	return slices.ContainsFunc(calls, func(c scriptCall) bool { return c.Epoch == epoch && len(c.writes) > 0 })
}
