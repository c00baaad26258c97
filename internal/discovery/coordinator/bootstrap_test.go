package coordinator_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Founders must learn of the last founder before an election is possible. A founder that reaches the others after they
// have a leader is late, and must have no vote at first.
func TestFoundersHearOfTheLastInTime(t *testing.T) {
	for _, after := range []time.Duration{10, 210, 800, 1290, 1700, 2330} {
		after *= time.Millisecond
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newSimCluster(t, 3, nil)
				for _, p := range c.peers {
					c.stop(p.ID)
				}
				founded := func(id string) bool { last, _ := c.nodes[id].stores.Log.LastIndex(); return last > 0 }
				c.start("c1", nil)
				c.start("c2", nil)
				pass(after)
				require.False(t, founded("c1") || founded("c2"))
				started := time.Now()
				c.start("c3", nil)
				for id := range c.nodes {
					c.waitUntil("founded by "+id, func() bool { return founded(id) })
				}
				require.LessOrEqual(t, time.Since(started), 150*time.Millisecond)
			})
		})
	}
}

// The leader must report a lost disk if a disk was lost, and not for a founder that starts late.
func TestLateFounderIsNotSaidToHaveLostItsDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var output bytes.Buffer
		log := slog.New(slog.NewJSONHandler(&output, nil)) // locks for itself
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) { cfg.Logger = log })
		for _, p := range c.peers {
			c.stop(p.ID)
		}
		output.Reset()
		c.start("c1", nil)
		c.start("c2", nil)
		c.leader()
		votes := func() bool { return c.suffrage("c3") == rollcallv1.Suffrage_SUFFRAGE_VOTER }
		c.start("c3", nil)
		pass(time.Second)
		c.await("it votes", votes)
		synctest.Wait()
		lines := taken(t, &output)
		require.Len(t, lines, 1)
		require.Equal(t, "INFO", lines[0]["level"])

		c.stop("c3")
		pass(2 * time.Minute)
		c.start("c3", nil)
		pass(time.Second)
		c.await("it votes again", votes)
		synctest.Wait()
		lines = taken(t, &output)
		require.Len(t, lines, 1)
		require.Equal(t, "WARN", lines[0]["level"])
		require.Contains(t, lines[0]["msg"], "lost its disk")
	})
}

// taken lists, and clears, the leader's log lines about taken votes.
func taken(t *testing.T, output *bytes.Buffer) (lines []map[string]any) {
	for raw := range bytes.SplitSeq(bytes.TrimSpace(output.Bytes()), []byte("\n")) {
		line := make(map[string]any)
		require.NoError(t, json.Unmarshal(raw, &line))
		if line["member"] == "c3" && bytes.Contains(raw, []byte("empty disk")) {
			lines = append(lines, line)
		}
	}
	output.Reset()
	return lines
}
