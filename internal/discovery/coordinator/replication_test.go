package coordinator

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

func TestCaughtUpVoters_SilentOrBehind_AreLeftOut(t *testing.T) {
	voters := []raft.Server{{ID: "a"}, {ID: "b"}}
	entries := func(term, after uint64) *raft.AppendEntriesRequest {
		return &raft.AppendEntriesRequest{Term: term, PrevLogEntry: after, Entries: make([]*raft.Log, 1)}
	}
	able := func(r *replication, term uint64) (ids []raft.ServerID) {
		for _, s := range r.caughtUpVoters(term, voters, time.Second) {
			ids = append(ids, s.ID)
		}
		return ids
	}
	ids := func(ids ...raft.ServerID) []raft.ServerID { return ids }

	var r replication
	require.Empty(t, able(&r, 1), "no follower has answered")
	r.begin("a", &raft.AppendEntriesRequest{Term: 1})(true)
	require.Empty(t, able(&r, 1), "a heartbeat")
	r.begin("a", entries(1, 4))(true)
	r.begin("b", entries(1, 5))(true)
	require.Equal(t, ids("b", "a"), able(&r, 1), "the one with the most first")

	r.begin("b", entries(1, 6))(false)
	require.Equal(t, ids("a"), able(&r, 1))
	r.begin("b", &raft.AppendEntriesRequest{Term: 1})(true)
	require.Equal(t, ids("a"), able(&r, 1), "a heartbeat is no entry")

	r.transferTimedOut("a")
	for range roundsAfterTransfer - 1 {
		r.begin("a", entries(1, 5))(true)
		require.Empty(t, able(&r, 1))
	}
	r.begin("a", &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 6})(true)
	require.Equal(t, ids("a"), able(&r, 1))

	late := r.begin("a", entries(1, 6))
	r.begin("b", entries(2, 7))(true)
	late(true)
	r.begin("a", entries(1, 7))(true)
	require.Empty(t, able(&r, 1), "that term is over")
	require.Equal(t, ids("b"), able(&r, 2))

	synctest.Test(t, func(t *testing.T) {
		var r replication
		r.begin("a", entries(1, 4))(true)
		end := r.begin("a", entries(1, 5))
		<-time.After(time.Second)
		require.Equal(t, ids("a"), able(&r, 1))
		<-time.After(time.Millisecond)
		require.Empty(t, able(&r, 1), "it has been silent for too long")
		end(true)
		require.Equal(t, ids("a"), able(&r, 1))
	})
}
