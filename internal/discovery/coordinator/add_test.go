package coordinator_test

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// The node must be refused with and without a vote.
func TestAddMember_NodeWithLogOfAnotherCluster_IsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a")
		stores := memStores()
		theirs := raft.Configuration{Servers: []raft.Server{
			{ID: "c4", Address: "c4:7400"}, {ID: "c8", Address: "c8:7400"}, {ID: "c9", Address: "c9:7400"},
		}}
		require.NoError(t, stores.Log.StoreLogs([]*raft.Log{
			{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(theirs)}, {Index: 2, Term: 3, Type: raft.LogNoop},
		}))
		require.NoError(t, stores.Stable.SetUint64([]byte("CurrentTerm"), 3))
		require.NoError(t, raftstore.Set(stores.Stable, raftstore.KeyCluster, "theirs"))
		c.net.Isolate("c4") // otherwise it finds this cluster at its start, and ends
		c.start("c4", stores)
		leader, _ := c.leader()
		pass(time.Second)
		c.net.Heal()
		for _, nonVoter := range []bool{false, true} {
			_, err := c.admin(leader).AddMember(t.Context(), &rollcallv1.AddMemberRequest{Id: "c4", Address: "c4:7400", NonVoter: nonVoter})
			require.Equal(t, codes.FailedPrecondition, status.Code(err))
			require.ErrorContains(t, err, "this is cluster theirs, not ")
		}
		_, member := written(t, c.nodes[leader].stores, "c4")
		require.False(t, member)

		c.stop("c4")
		c.wipe("c4")
		c.await("added", func() bool {
			leader, _ := c.leader()
			_, err := c.admin(leader).AddMember(t.Context(), &rollcallv1.AddMemberRequest{Id: "c4", Address: "c4:7400"})
			return err == nil
		})
		c.await("it votes", func() bool { return c.suffrage("c4") == rollcallv1.Suffrage_SUFFRAGE_VOTER })
	})
}

func TestAddMember_AddressContradictsPeerList_IsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		leader, _ := c.leader()
		follower := c.follower()
		_, err := c.admin(leader).AddMember(t.Context(), &rollcallv1.AddMemberRequest{Id: follower, Address: "elsewhere:7400"})
		require.Equal(t, codes.FailedPrecondition, status.Code(err))
		require.ErrorContains(t, err, follower+" is at "+follower+":7400 by the peer list")
	})
}

func TestAddMember_OperatorChangesVote_OverridesTheRecordedWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a", "b")
		c.add("c4")
		change := func(id string, nonVoter bool) error {
			leader, _ := c.leader()
			_, err := c.admin(leader).AddMember(t.Context(), &rollcallv1.AddMemberRequest{Id: id, Address: id + ":7400", NonVoter: nonVoter})
			return err
		}
		leader, _ := c.leader()
		require.ErrorContains(t, change(leader, true), "hand the leadership over first")
		require.Equal(t, rollcallv1.Suffrage_SUFFRAGE_VOTER, c.suffrage(leader))
		victim := c.follower()
		require.NoError(t, change(victim, true))
		require.NoError(t, change(victim, false), "it waits now")
		require.NoError(t, change(victim, true), "and no longer")
		pass(time.Minute)
		require.Equal(t, rollcallv1.Suffrage_SUFFRAGE_NON_VOTER, c.suffrage(victim))
		require.NoError(t, change(victim, false))
		c.whole(victim)

		// A vote must not be taken if the other voters would not be a quorum.
		leader, _ = c.leader()
		others := slices.DeleteFunc([]string{"c1", "c2", "c3", "c4"}, func(id string) bool { return id == leader })
		c.stop(others[0])
		require.NoError(t, change(others[1], true))
		require.ErrorContains(t, change(others[2], true), "no quorum")
		require.Equal(t, rollcallv1.Suffrage_SUFFRAGE_VOTER, c.suffrage(others[2]))
	})
}

// wire is a connection that a dead network may keep: written data is lost, and no data arrives.
type wire struct {
	net.Conn
	dead   *atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if w.dead.Load() {
		<-w.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (w *wire) Write(b []byte) (int, error) {
	if w.dead.Load() {
		return len(b), nil
	}
	return w.Conn.Write(b)
}

func (w *wire) Close() error {
	w.once.Do(func() { close(w.closed) })
	return w.Conn.Close()
}

// Idle connections between followers are dead without notice. The next leader must detect that in time, and confirm
// its term.
func TestLeader_DeadIdleConnections_ConfirmsItsTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		made := make(map[string][]*atomic.Bool)
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) {
			id, dial := cfg.ID, cfg.Dial
			cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				conn, err := dial(ctx, addr)
				if err != nil {
					return nil, err
				}
				mu.Lock()
				defer mu.Unlock()
				dead := new(atomic.Bool)
				made[id] = append(made[id], dead)
				return &wire{Conn: conn, dead: dead, closed: make(chan struct{})}, nil
			}
		})
		c.register("a")
		leader, _ := c.leader()
		pass(time.Minute) // connections become idle
		mu.Lock()
		for id, conns := range made {
			for _, dead := range conns {
				dead.Store(id != leader)
			}
		}
		mu.Unlock()
		pass(15 * time.Second) // a keepalive and its timeout
		c.stop(leader)
		next, _ := c.leader()
		asked := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := c.client(next).ListServices(ctx, &rollcallv1.ListServicesRequest{})
		require.NoError(t, err)
		require.Less(t, time.Since(asked), 2*time.Second)
	})
}
