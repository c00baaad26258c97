package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func fenced(seq uint64, services ...*rollcallv1.Service) *rollcallv1.RegisterServicesRequest {
	return &rollcallv1.RegisterServicesRequest{
		Writer: &rollcallv1.Writer{
			Owner:       &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "edge-1"},
			Incarnation: 1, Seq: seq,
		},
		Services: services,
	}
}

func unfenced(services ...*rollcallv1.Service) *rollcallv1.RegisterServicesRequest {
	return &rollcallv1.RegisterServicesRequest{
		Writer:   &rollcallv1.Writer{Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_OPERATOR}},
		Services: services,
	}
}

// once returns a hook that fails the first call of method.
func once(method string, err error) func(string) error {
	var done atomic.Bool
	return func(m string) error {
		if m != method || !done.CompareAndSwap(false, true) {
			return nil
		}
		return err
	}
}

func TestRegister_NoEpochGiven_SendsTheLeadersEpoch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1")
		f.lead("n1", 6)
		req := fenced(1, services("a")...)
		resp, err := f.client("n1").Register(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, uint64(6), resp.GetEpoch())
		require.Equal(t, uint64(6), f.took()[0].GetWriter().GetEpoch())
		require.Zero(t, req.GetWriter().GetEpoch(), "the caller's request is left alone")
	})
}

// A call that is refused this way must be retried, on another node or later.
func TestCall_RetryableRefusal_IsRetried(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]error{
		"not leader":      failureWith(codes.FailedPrecondition, &rollcallv1.NotLeader{}),
		"not established": failureWith(codes.Unavailable, &rollcallv1.NotEstablished{}),
		"no quorum":       failureWith(codes.Unavailable, &rollcallv1.NoQuorum{}),
		"stale epoch":     failureWith(codes.Aborted, &rollcallv1.StaleEpoch{Epoch: 2}),
		"busy":            failureWith(codes.ResourceExhausted, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, "n1", "n2")
				f.lead("n1", 1)
				f.set(func() { f.nodes[address("n1")].before = once("register", refused) })
				began := time.Now()
				_, err := f.client("n1", "n2").Register(t.Context(), unfenced(services("a")...))
				require.NoError(t, err)
				require.Len(t, f.took(), 2)
				if name == "busy" {
					require.GreaterOrEqual(t, time.Since(began), time.Second)
				}
			})
		})
	}
}

func TestCall_LeaderChanged_FollowsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2")
		f.lead("n1", 1)
		c := f.client("n1", "n2")
		within(t, c, time.Second)
		synctest.Wait()
		f.lead("n2", 2) // the client receives this from the refusal
		began := time.Now()
		resp, err := c.Register(t.Context(), fenced(1, services("a")...))
		require.NoError(t, err)
		require.Equal(t, uint64(2), resp.GetEpoch())
		require.Less(t, time.Since(began), 50*time.Millisecond, "and not from a poll")
		require.Equal(t, "n2", within(t, c, 0).Node)
		status, err := c.Status(t.Context())
		require.NoError(t, err)
		require.Equal(t, "n2", status.GetLeader())
	})
}

func TestRegister_EpochGivenIsStale_Fails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1")
		f.lead("n1", 2)
		req := fenced(1, services("a")...)
		req.Writer.Epoch = 1
		_, err := f.client("n1").Register(t.Context(), req)
		var stale *StaleEpochError
		require.ErrorAs(t, err, &stale)
		require.Equal(t, uint64(2), stale.Epoch)
	})
}

func TestCall_OutcomeUnknown_RetriesOnlyFencedWrites(t *testing.T) {
	t.Parallel()
	lost := failureWith(codes.Unknown, &rollcallv1.UnknownOutcome{Cause: "leadership lost"})
	t.Run("a fenced write is repeated as it is", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, "n1")
			f.lead("n1", 1)
			f.set(func() { f.nodes[address("n1")].after = once("register", lost) })
			resp, err := f.client("n1").Register(t.Context(), fenced(5, services("a")...))
			require.NoError(t, err)
			require.Equal(t, uint32(1), resp.GetRegistered(), "the answer is that of the first time")
			require.Equal(t, uint64(1), resp.GetIndex(), "and it was done once")
			writes := f.took()
			require.Len(t, writes, 2)
			require.Equal(t, writes[0].String(), writes[1].String())
		})
	})
	t.Run("an operator's is not", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, "n1")
			f.lead("n1", 1)
			f.set(func() { f.nodes[address("n1")].after = once("register", lost) })
			_, err := f.client("n1").Register(t.Context(), unfenced(services("a")...))
			var unknown *UnknownOutcomeError
			require.ErrorAs(t, err, &unknown)
			require.Equal(t, "leadership lost", unknown.Cause)
			require.Len(t, f.took(), 1)
		})
	})
	t.Run("the leader dies on the way", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, "n1", "n2")
			f.lead("n1", 1)
			f.set(func() {
				f.nodes[address("n1")].after = func(string) error {
					go f.kill("n1")
					<-t.Context().Done()
					return nil
				}
			})
			c := f.client("n1", "n2")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.Register(ctx, fenced(1, services("a")...))
			var unknown *UnknownOutcomeError
			require.ErrorAs(t, err, &unknown, "no coordinator reported the outcome")
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
	})
	t.Run("the caller's time is over", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, "n1")
			f.lead("n1", 1)
			c := f.client("n1")
			within(t, c, time.Second)
			f.set(func() { f.nodes[address("n1")].hangs = true })
			for _, req := range []*rollcallv1.RegisterServicesRequest{fenced(1), unfenced()} {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				_, err := c.Register(ctx, req)
				cancel()
				var unknown *UnknownOutcomeError
				require.ErrorAs(t, err, &unknown)
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := c.Status(ctx)
			var unknown *UnknownOutcomeError
			require.NotErrorAs(t, err, &unknown, "a read has no outcome")
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
	})
}

func TestRegister_NeverSent_IsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1")
		f.lead("n1", 1)
		unsent := once("/rollcall.v1.DiscoveryService/RegisterServices", status.Error(codes.Unavailable, "connection refused"))
		cfg := f.config("n1")
		cfg.DialOptions = []grpc.DialOption{grpc.WithUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if err := unsent(method); err != nil {
					return err
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			})}
		_, err := f.clientWith(cfg).Register(t.Context(), unfenced(services("a")...))
		require.NoError(t, err)
		require.NoError(t, unsent("/rollcall.v1.DiscoveryService/RegisterServices"), "it was refused once")
	})
}

func TestCall_LeaderHangs_UsesTheNextOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2", "n3")
		f.lead("n1", 1)
		c := f.client("n1", "n2", "n3")
		within(t, c, time.Second)
		f.set(func() { f.nodes[address("n1")].hangs = true })
		began := time.Now()
		time.AfterFunc(300*time.Millisecond, func() { f.lead("n2", 2) })
		resp, err := c.Register(t.Context(), fenced(1, services("a")...))
		require.NoError(t, err)
		require.Equal(t, uint64(2), resp.GetEpoch())
		require.Less(t, time.Since(began), time.Second, "the poll finds the new leader, not the call's own time")
	})
}

func TestCall_LeaderAnswersOnlyPings_RetriesAfterTheTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1")
		f.lead("n1", 1)
		var calls atomic.Int32
		f.set(func() {
			f.nodes[address("n1")].before = func(string) error {
				if calls.Add(1) == 1 {
					pass(time.Minute) // the leader responds to pings but hangs otherwise
				}
				return nil
			}
		})
		began := time.Now()
		_, err := f.client("n1").Register(t.Context(), fenced(1, services("a")...))
		require.NoError(t, err)
		require.InDelta(t, 10, time.Since(began).Seconds(), 1)
		pass(time.Minute)
	})
}

func TestCall_DefiniteRefusal_IsReturned(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"invalid":    failureWith(codes.InvalidArgument, &errdetails.BadRequest{}),
		"too large":  failureWith(codes.ResourceExhausted, &rollcallv1.TooLarge{}),
		"superseded": failureWith(codes.Aborted, &rollcallv1.Superseded{}),
		"denied":     status.Error(codes.PermissionDenied, "no"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, "n1")
				f.lead("n1", 1)
				f.set(func() { f.nodes[address("n1")].before = once("register", answer) })
				_, err := f.client("n1").Register(t.Context(), fenced(1, services("a")...))
				require.ErrorContains(t, err, FromStatus(answer).Error())
				require.Len(t, f.took(), 1)
			})
		})
	}
}

func TestListAll_SeveralPages_ReadsAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2")
		f.lead("n1", 1)
		c := f.client("n1", "n2")
		_, err := c.Register(t.Context(), fenced(1, services("a", "b", "c")...))
		require.NoError(t, err)
		list := func(c *Client, stale bool) (ids []string) {
			for r, err := range c.ListAll(t.Context(), &rollcallv1.ListServicesRequest{Stale: stale}) {
				require.NoError(t, err)
				ids = append(ids, r.GetService().GetId())
			}
			return ids
		}
		require.Equal(t, []string{"a", "b", "c"}, list(c, false))

		f.lead("", 1) // without a leader only the stale read continues, and a hanging node does not stop it
		f.set(func() { f.nodes[address("n1")].hangs = true })
		require.Equal(t, []string{"a", "b", "c"}, list(c, true))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.List(ctx, &rollcallv1.ListServicesRequest{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestDeregister_OutcomeUnknown_IsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1")
		f.lead("n1", 1)
		f.set(func() {
			f.nodes[address("n1")].after = once("deregister", failureWith(codes.Unknown, &rollcallv1.UnknownOutcome{}))
		})
		c := f.client("n1")
		_, err := c.Register(t.Context(), fenced(1, services("a", "b")...))
		require.NoError(t, err)
		resp, err := c.Deregister(t.Context(), &rollcallv1.DeregisterServicesRequest{Writer: fenced(2).GetWriter(), Ids: []string{"a"}})
		require.NoError(t, err)
		require.Equal(t, uint32(1), resp.GetRemoved())
		require.Equal(t, []string{"b"}, f.ids(edge("edge-1")))
	})
}

func TestWatch_LeaderChanges_ResumesThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2")
		f.lead("n1", 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var tokens []string
		var last error
		for resp, err := range f.client("n1", "n2").Watch(ctx, &rollcallv1.WatchServicesRequest{}) {
			if last = err; err != nil {
				break
			}
			switch tokens = append(tokens, resp.GetToken()); len(tokens) {
			case 2:
				f.lead("n2", 2)
				f.set(func() { f.nodes[address("n1")].hangs = true }) // its stream stays open
			case 3:
				f.set(func() { f.nodes[address("n1")].hangs = false })
				f.lead("n1", 3)
				f.kill("n2")
			case 4:
				cancel()
			}
		}
		require.ErrorIs(t, last, context.Canceled)
		require.Equal(t, []string{"", "token-of-n1", "token-of-n1,n2", "token-of-n1,n2,n1"}, tokens)
	})
}

func TestWatch_LeaderStops_ContinuesOnTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2")
		f.lead("n1", 1)
		stopping := once("watch", failureWith(codes.Unavailable, &rollcallv1.NotEstablished{}))
		f.set(func() {
			f.nodes[address("n1")].after = func(method string) error {
				f.lead("n2", 2)
				return stopping(method)
			}
		})
		var tokens []string
		for resp, err := range f.client("n1", "n2").Watch(t.Context(), &rollcallv1.WatchServicesRequest{}) {
			require.NoError(t, err)
			if tokens = append(tokens, resp.GetToken()); len(tokens) == 3 {
				break
			}
		}
		require.Equal(t, "token-of-n1,n2", tokens[2])
	})
}

func TestWatch_CannotResume_Ends(t *testing.T) {
	t.Parallel()
	for name, hook := range map[string]func(*node){
		"broken inside the snapshot": func(n *node) { n.before = once("watch", status.Error(codes.Unavailable, "gone")) },
		"compacted":                  func(n *node) { n.after = once("watch", failureWith(codes.OutOfRange, &rollcallv1.Compacted{})) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, "n1")
				f.lead("n1", 1)
				f.set(func() { hook(f.nodes[address("n1")]) })
				var last error
				for _, last = range f.client("n1").Watch(t.Context(), &rollcallv1.WatchServicesRequest{}) {
				}
				require.ErrorIs(t, last, ErrCompacted)
			})
		})
	}
}

func TestClient_LargeMessages_AreTransferred(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1")
		f.lead("n1", 1)
		c := f.client("n1")
		big := service("big")
		big.WorkerRef.Labels = map[string]string{"ballast": strings.Repeat("x", 5<<20)}
		_, err := c.Register(t.Context(), fenced(1, big))
		require.NoError(t, err)
		page, err := c.List(t.Context(), &rollcallv1.ListServicesRequest{})
		require.NoError(t, err)
		require.Len(t, page.GetRecords(), 1)
	})
}

func TestClient_TLS_IsUsed(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	mine := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}

	f := newFleet(t)
	n := &node{fleet: f, id: "n1", cluster: "cluster-a", epoch: 1}
	n.leader = n
	n.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: mine, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	})))
	rollcallv1.RegisterDiscoveryServiceServer(n.server, n)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n.address = listener.Addr().String()
	f.nodes[n.address] = n
	go func() { _ = n.server.Serve(listener) }()

	ask := func(cfg *tls.Config) error {
		c := f.clientWith(ClientConfig{Coordinators: []string{n.address}, TLS: cfg, PingTimeout: 10 * time.Second})
		_, err := c.Ping(t.Context(), n.address)
		return err
	}
	// A busy machine may exceed the second that an attempt has.
	require.Eventually(t, func() bool { return ask(&tls.Config{RootCAs: pool, Certificates: mine}) == nil }, 2*time.Minute, 10*time.Millisecond)
	require.Error(t, ask(&tls.Config{RootCAs: pool})) // the text depends on the side that closes first
	require.Eventually(t, func() bool {
		err := ask(&tls.Config{Certificates: mine})
		return err != nil && strings.Contains(err.Error(), "certificate signed by unknown authority")
	}, 2*time.Minute, 10*time.Millisecond)
	require.Error(t, ask(nil))
}
