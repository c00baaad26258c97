package coordinator

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// voter responds as a node; if thaw is set, it responds once thaw is closed.
type voter struct {
	rollcallv1.UnimplementedPeerServiceServer
	id    string
	term  atomic.Uint64
	thaw  atomic.Pointer[chan struct{}]
	asked atomic.Int64
}

func (v *voter) ConfirmTerm(ctx context.Context, _ *rollcallv1.ConfirmTermRequest) (*rollcallv1.ConfirmTermResponse, error) {
	v.asked.Add(1)
	if thaw := v.thaw.Load(); thaw != nil {
		select {
		case <-*thaw:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return &rollcallv1.ConfirmTermResponse{Term: v.term.Load(), Node: v.id}, nil
}

// newElectorate returns the confirmer of node a in term 7, and the other voters that its quorum asks.
func newElectorate(t *testing.T, ids ...string) (c *confirmer, voters map[string]*voter, others func() []raft.Server) {
	ctx, cancel := context.WithCancel(t.Context())
	voters = make(map[string]*voter)
	listeners := make(map[string]*bufconn.Listener)
	for _, id := range ids {
		v := &voter{id: id}
		v.term.Store(7)
		s := grpc.NewServer()
		rollcallv1.RegisterPeerServiceServer(s, v)
		l := bufconn.Listen(1 << 16)
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		voters[id], listeners[id] = v, l
	}
	p := newPeers(&Config{}, nil)
	p.dial = func(addr string) (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(_ context.Context, addr string) (net.Conn, error) { return listeners[addr].Dial() }))
	}
	t.Cleanup(p.close)
	c = &confirmer{ctx: ctx, term: 7, node: "a", peers: p, timeout: time.Second, hedge: 20 * time.Millisecond}
	t.Cleanup(func() {
		cancel()
		c.close()
	})
	return c, voters, func() (all []raft.Server) {
		for _, id := range ids {
			all = append(all, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)})
		}
		return all
	}
}

// A round must ask only as many voters as it needs, and all of them periodically.
func TestConfirmer_Quorum_AsksOnlyAsManyVotersAsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, voters, others := newElectorate(t, "b", "c")
		for range fullPollEvery {
			require.NoError(t, c.quorum(others(), 1))
		}
		synctest.Wait()
		require.EqualValues(t, fullPollEvery+1, voters["b"].asked.Load()+voters["c"].asked.Load())
	})
}

// A hanging voter must delay one round by the hedge, and later rounds not at all.
func TestConfirmer_VoterHangs_DelaysOneRoundByTheHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, voters, others := newElectorate(t, "b", "c")
		require.NoError(t, c.quorum(others(), 1))
		require.EqualValues(t, 1, voters["b"].asked.Load())
		thaw := make(chan struct{})
		voters["b"].thaw.Store(&thaw)

		began := time.Now()
		require.NoError(t, c.quorum(others(), 1))
		require.Equal(t, c.hedge, time.Since(began))
		for range 10 {
			require.NoError(t, c.quorum(others(), 1))
		}
		require.Equal(t, c.hedge, time.Since(began))
		require.EqualValues(t, 2, voters["b"].asked.Load())
		close(thaw)
	})
}

// A voter that has not recorded the leader's election yet must be asked again. The only other one may be down.
func TestConfirmer_VoterBehind_IsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, voters, others := newElectorate(t, "b")
		voters["b"].term.Store(6)
		time.AfterFunc(c.timeout/2, func() { voters["b"].term.Store(7) })
		began := time.Now()
		require.NoError(t, c.quorum(others(), 1))
		require.Less(t, time.Since(began), c.timeout/2+2*behindPoll)
	})
}

// One silent voter must be tolerated; without a majority the confirmation must fail.
func TestConfirmer_NoMajorityAnswers_Fails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, voters, others := newElectorate(t, "b", "c", "d", "e")
		voters["b"].term.Store(6)
		voters["c"].term.Store(6)
		began := time.Now()
		require.NoError(t, c.quorum(others(), 2), "d and e")
		require.Equal(t, c.hedge, time.Since(began), "the round does not wait for the voters that are behind")

		voters["d"].term.Store(6)
		require.ErrorIs(t, c.quorum(others(), 2), errNoQuorum)
		for _, v := range voters {
			v.term.Store(7)
		}
		voters["e"].term.Store(8)
		require.ErrorIs(t, c.quorum(others(), 4), errLostLeadership, "in any order of answers")

		for _, v := range voters {
			v.thaw.Store(new(chan struct{}))
		}
		began = time.Now()
		require.ErrorIs(t, c.quorum(others(), 2), errNoQuorum)
		require.Equal(t, c.timeout, time.Since(began))
	})
}
