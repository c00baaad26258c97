package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// fakeSource is a Source whose set the test changes.
type fakeSource struct {
	changed chan struct{}

	mu    sync.Mutex
	set   Set
	err   error
	asked int
	block chan struct{} // if set, Services waits for it
}

func newSource(services ...*rollcallv1.Service) *fakeSource {
	return &fakeSource{changed: make(chan struct{}, 1), set: Set{Services: services, Complete: true}}
}

func (s *fakeSource) Services(ctx context.Context) (Set, error) {
	s.mu.Lock()
	s.asked++
	set, err, block := s.set, s.err, s.block
	s.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return Set{}, ctx.Err()
		}
	}
	return set, err
}

func (s *fakeSource) Changed() <-chan struct{} { return s.changed }

func (s *fakeSource) change(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *fakeSource) define(services ...*rollcallv1.Service) {
	s.change(func() { s.set.Services = services })
}

// running is a Gateway whose Run is active.
type running struct {
	*Gateway
	t    *testing.T
	stop context.CancelFunc
	done chan error
}

func (f *fleet) gatewayWith(cfg Config) *running {
	if cfg.Coordinators == nil {
		cfg.ClientConfig = f.config("n1", "n2", "n3")
	}
	if cfg.ID == "" {
		cfg.ID = "edge-1"
	}
	g, err := New(cfg)
	require.NoError(f.t, err)
	r := &running{Gateway: g, t: f.t, done: make(chan error, 1)}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(f.t.Context())
	go func() { r.done <- g.Run(ctx) }()
	f.t.Cleanup(func() { _ = r.end() })
	return r
}

func (f *fleet) gateway(s Source) *running { return f.gatewayWith(Config{Source: s}) }

// end stops Run and returns its result, also on later calls.
func (r *running) end() error {
	r.stop()
	err := <-r.done
	r.done <- err
	return err
}

// setup runs test in a bubble, with three nodes led by n1 in epoch 1.
func setup(t *testing.T, test func(t *testing.T, f *fleet)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "n1", "n2", "n3")
		f.lead("n1", 1)
		test(t, f)
	})
}

func TestGateway_Started_RegistersOneFullSet(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		var leaders []Leader
		var writes []Write
		g := f.gatewayWith(Config{
			Source:   Static(services("a", "b")...),
			OnLeader: func(l Leader) { leaders = append(leaders, l) },
			OnWrite:  func(w Write) { writes = append(writes, w) },
		})
		synctest.Wait()
		took := f.took()
		require.Len(t, took, 1)
		require.True(t, took[0].GetFullSet())
		require.False(t, took[0].GetAllowEmpty())
		require.Equal(t, uint64(time.Now().UnixNano()), took[0].GetWriter().GetIncarnation())
		require.Equal(t, []string{"a", "b"}, f.ids(edge("edge-1")))

		s := g.Status()
		require.Equal(t, Leader{Cluster: "cluster-a", Node: "n1", Address: "n1:7400", Epoch: 1}, s.Leader)
		require.True(t, s.Synced)
		require.Equal(t, 2, s.Registered)
		require.Equal(t, time.Now(), s.LastWrite)
		require.NoError(t, s.Err)
		require.NoError(t, g.end())
		require.Len(t, leaders, 1)
		require.Equal(t, []Write{{Epoch: 1, Index: 1, FullSet: true, Registered: 2}}, writes)
		require.Equal(t, []string{"a", "b"}, f.ids(edge("edge-1")), "registered services are kept when the gateway stops")
	})
}

func TestGateway_NewLeaderOrEpoch_PullsAgain(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		s := newSource(services("a")...)
		g := f.gateway(s)
		synctest.Wait()
		f.took()
		for epoch, leader := range []string{2: "n2", 3: "n2", 4: "n3"} {
			if leader == "" {
				continue
			}
			asked := s.asked
			f.lead(leader, uint64(epoch))
			pass(time.Second)
			took := f.took()
			require.Len(t, took, 1)
			require.True(t, took[0].GetFullSet())
			require.Equal(t, uint64(epoch), took[0].GetWriter().GetEpoch())
			require.Equal(t, asked+1, s.asked)
			require.True(t, g.Status().Synced)
		}
	})
}

func TestGateway_ServiceMissingInDirectory_RegistersItAgain(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		f.gateway(newSource(services("a", "b")...))
		synctest.Wait()
		f.took()
		f.set(func() { delete(f.directory, "a") }) // for example an operator's mistake
		pass(67 * time.Second)
		require.Equal(t, []string{"a", "b"}, f.ids(edge("edge-1")))
		require.Len(t, f.took(), 1)
		pass(10 * time.Minute)
		require.InDelta(t, 10, len(f.took()), 1)
	})
}

func TestGateway_ServiceAdded_SendsOnlyTheNewOne(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		s := newSource(services("a", "b")...)
		f.gateway(s)
		synctest.Wait()
		f.took()

		s.define(services("a", "b", "c")...)
		synctest.Wait()
		took := f.took()
		require.Len(t, took, 1)
		require.False(t, took[0].GetFullSet())
		require.Equal(t, []string{"c"}, idsOf(took[0].GetServices()))

		moved := service("b")
		moved.WorkerRef.Url = "http://elsewhere:3000"
		s.define(service("a"), moved, service("c"))
		synctest.Wait()
		took = f.took()
		require.Len(t, took, 1)
		require.Equal(t, []string{"b"}, idsOf(took[0].GetServices()))

		s.define(service("a"), moved, service("c"))
		synctest.Wait()
		require.Empty(t, f.took(), "nothing changed")

		s.define(service("a"), service("d"))
		synctest.Wait()
		require.Len(t, f.took(), 1, "additions and removals are one command")
		require.Equal(t, []string{"a", "d"}, f.ids(edge("edge-1")))

		s.define()
		synctest.Wait()
		took = f.took()
		require.Len(t, took, 1)
		require.True(t, took[0].GetAllowEmpty(), "the source is complete")
		require.Empty(t, f.ids(edge("edge-1")))
	})
}

func idsOf(services []*rollcallv1.Service) (ids []string) {
	for _, s := range services {
		ids = append(ids, s.GetId())
	}
	return ids
}

func TestGateway_ManyChanges_AreCoalesced(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		s := newSource(services("a")...)
		f.gateway(s)
		synctest.Wait()
		f.took()
		flight := make(chan struct{})
		f.set(func() {
			f.nodes[address("n1")].before = func(string) error { <-flight; return nil }
		})
		for i := range 100 {
			s.change(func() { s.set.Services = append(slices.Clone(s.set.Services), service(fmt.Sprintf("s-%d", i))) })
			synctest.Wait()
		}
		close(flight)
		synctest.Wait()
		took := f.took()
		require.Len(t, took, 2, "one on its way, and one for all that came meanwhile")
		require.Len(t, took[0].GetServices(), 1)
		require.Len(t, took[1].GetServices(), 99)
		require.Len(t, f.ids(edge("edge-1")), 101)
	})
}

func TestGateway_SourceChangesDuringPull_PullsAgain(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		s := newSource(services("a")...)
		s.block = make(chan struct{})
		f.gateway(s)
		synctest.Wait()
		s.define(services("a", "b")...) // the pull has begun and does not contain b
		close(s.block)
		synctest.Wait()
		require.Equal(t, []string{"a", "b"}, f.ids(edge("edge-1")))
		require.Len(t, f.took(), 2)
		require.Equal(t, 2, s.asked)
	})
}

func TestGateway_LeaderKilled_RegistersWithTheNext(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		s := newSource(services("a")...)
		g := f.gateway(s)
		synctest.Wait()
		f.kill("n1")
		s.define(services("a", "b")...)
		pass(300 * time.Millisecond)
		require.False(t, g.Status().Synced)
		require.ErrorIs(t, g.Status().Err, ErrNoLeader)
		require.ErrorContains(t, g.Status().Err, "n1:7400")
		f.took()
		f.lead("n2", 2)
		pass(60 * time.Millisecond)
		require.Equal(t, []string{"a", "b"}, f.ids(edge("edge-1")))
		require.Equal(t, uint64(2), f.took()[0].GetWriter().GetEpoch())
		require.True(t, g.Status().Synced)
		require.NoError(t, g.Status().Err)
	})
}

func TestGateway_OutcomeUnknown_RetriesTheSameWrite(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		s := newSource(services("a")...)
		f.set(func() {
			f.nodes[address("n1")].after = func(string) error {
				f.lead("n2", 2)
				s.define(services("a", "b")...)
				return failureWith(codes.Unknown, &rollcallv1.UnknownOutcome{Cause: "leadership lost"})
			}
		})
		f.gateway(s)
		pass(time.Second)
		took := f.took()
		require.Len(t, took, 3)
		require.Equal(t, uint64(1), took[0].GetWriter().GetEpoch())
		require.Equal(t, uint64(2), took[1].GetWriter().GetEpoch())
		require.Equal(t, took[0].GetWriter().GetSeq(), took[1].GetWriter().GetSeq())
		require.Equal(t, idsOf(took[0].GetServices()), idsOf(took[1].GetServices()))
		require.Greater(t, took[2].GetWriter().GetSeq(), took[1].GetWriter().GetSeq())
		require.Equal(t, []string{"a", "b"}, f.ids(edge("edge-1")))
	})
}

func TestGateway_ClockWentBack_TakesHigherIncarnation(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		future := uint64(time.Now().Add(time.Hour).UnixNano())
		f.owners[edge("edge-1")] = &ownerState{incarnation: future, seq: 9}
		g := f.gateway(newSource(services("a")...))
		synctest.Wait()
		require.Equal(t, []string{"a"}, f.ids(edge("edge-1")))
		require.Equal(t, future+1, g.Status().Incarnation)
		require.True(t, g.Status().Synced)
		require.NoError(t, g.end())
	})
}

func TestGateway_TwoWithTheSameID_OneEnds(t *testing.T) {
	t.Run("the older ends", func(t *testing.T) {
		setup(t, func(t *testing.T, f *fleet) {
			s := newSource(services("a")...)
			older := f.gateway(s)
			synctest.Wait()
			pass(time.Second)
			younger := f.gateway(newSource(services("b")...))
			synctest.Wait()
			s.define(services("a", "c")...)
			synctest.Wait()
			require.NotEmpty(t, older.done, "at once")
			err := older.end()
			var claimed *ClaimedError
			require.ErrorAs(t, err, &claimed)
			require.Equal(t, "edge-1", claimed.ID)
			require.ErrorContains(t, err, "each needs an id of its own")
			require.ErrorAs(t, older.Status().Err, &claimed)
			require.False(t, older.Status().Synced)
			require.NoError(t, younger.end())
			require.Equal(t, []string{"b"}, f.ids(edge("edge-1")))
		})
	})
	t.Run("of the same incarnation", func(t *testing.T) {
		setup(t, func(t *testing.T, f *fleet) {
			g := f.gateway(newSource(services("a")...))
			synctest.Wait()
			f.set(func() { // the other process has used the next numbers
				f.nodes[address("n1")].before = func(string) error {
					return failureWith(codes.FailedPrecondition, &rollcallv1.SequenceReused{Incarnation: 7, Seq: 2})
				}
			})
			pass(2 * time.Minute)
			var claimed *ClaimedError
			require.ErrorAs(t, g.end(), &claimed)
			require.EqualValues(t, 7, claimed.Incarnation)
		})
	})
	t.Run("no endless race", func(t *testing.T) {
		setup(t, func(t *testing.T, f *fleet) {
			var seen uint64
			f.set(func() { // another process is always ahead
				f.nodes[address("n1")].before = func(string) error {
					seen += 1 << 62
					return failureWith(codes.Aborted, &rollcallv1.Superseded{Incarnation: seen, Seq: 1})
				}
			})
			g := f.gateway(newSource(services("a")...))
			var claimed *ClaimedError
			require.ErrorAs(t, <-g.done, &claimed)
			g.done <- nil
			require.Len(t, f.took(), 2)
		})
	})
}

func TestGateway_OneServiceConflicts_RegistersTheRest(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		other := &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "edge-2"}
		f.directory["b"] = &rollcallv1.ServiceRecord{Service: service("b"), Owner: other}
		var refusals [][]Refusal
		s := newSource(services("a", "b", "c")...)
		g := f.gatewayWith(Config{Source: s, OnRefused: func(r []Refusal) { refusals = append(refusals, r) }})
		synctest.Wait()
		require.Equal(t, []string{"a", "c"}, f.ids(edge("edge-1")))
		require.Equal(t, []string{"b"}, f.ids(edge("edge-2")))
		require.Equal(t, []Refusal{{ID: "b", Owner: edge("edge-2"), Reason: "owned by gateway/edge-2"}}, g.Status().Refused)
		require.True(t, g.Status().Synced)
		require.Len(t, f.took(), 2)

		s.define(services("a", "b", "c", "d")...)
		synctest.Wait()
		require.Len(t, f.took(), 1, "an update does not ask again")

		pass(70 * time.Second)
		require.Len(t, f.took(), 2, "the full set does")
		require.Len(t, refusals, 1, "no news is not reported")

		f.set(func() { delete(f.directory, "b") })
		pass(70 * time.Second)
		require.Equal(t, []string{"a", "b", "c", "d"}, f.ids(edge("edge-1")))
		require.Empty(t, g.Status().Refused)
		require.Len(t, refusals, 2)
	})
}

func TestGateway_AllServicesConflict_RemovesEarlierOnes(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		operator := &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_OPERATOR}
		f.directory["a"] = &rollcallv1.ServiceRecord{Service: service("a"), Owner: operator}
		mine := &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "edge-1"}
		f.directory["ghost"] = &rollcallv1.ServiceRecord{Service: service("ghost"), Owner: mine}
		s := newSource(services("a")...)
		g := f.gateway(s)
		synctest.Wait()
		require.Empty(t, f.ids(edge("edge-1")), "an earlier run's services are removed")
		require.True(t, g.Status().Synced)

		f.directory["b"] = &rollcallv1.ServiceRecord{Service: service("b"), Owner: operator}
		s.define(services("a", "b")...)
		synctest.Wait()
		require.Len(t, g.Status().Refused, 2)
		s.define(services("b")...)
		synctest.Wait()
		require.Len(t, g.Status().Refused, 1, "a service that is no longer defined is no conflict")
		require.NoError(t, g.Status().Err)
	})
}

func TestGateway_OneServiceInvalid_RegistersTheRest(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		f.set(func() {
			f.nodes[address("n1")].before = once("register", failureWith(codes.InvalidArgument, &errdetails.BadRequest{
				FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "services[1].kind", Description: "is odd"}},
			}))
		})
		g := f.gateway(newSource(services("a", "b")...))
		synctest.Wait()
		require.Equal(t, []string{"a"}, f.ids(edge("edge-1")))
		require.Equal(t, []Refusal{{ID: "b", Reason: "services[1].kind: is odd"}}, g.Status().Refused)
	})
}

func TestGateway_RefusedAsWhole_Retries(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		f.set(func() {
			f.nodes[address("n1")].before = once("register", failureWith(codes.InvalidArgument, &errdetails.BadRequest{
				FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "writer", Description: "is odd"}},
			}))
		})
		var failed []error
		g := f.gatewayWith(Config{Source: newSource(services("a")...), OnError: func(err error) { failed = append(failed, err) }})
		synctest.Wait()
		require.ErrorContains(t, g.Status().Err, "writer: is odd")
		require.False(t, g.Status().Synced)
		pass(time.Second)
		require.True(t, g.Status().Synced)
		require.Len(t, failed, 1)
	})
}

func TestGateway_TooManyServices_SendsNothing(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		s := newSource()
		for i := range rollcallv1.MaxServicesPerCall + 1 {
			s.set.Services = append(s.set.Services, service(fmt.Sprintf("s-%d", i)))
		}
		g := f.gateway(s)
		synctest.Wait()
		var large *TooLargeError
		require.ErrorAs(t, g.Status().Err, &large)
		require.ErrorContains(t, g.Status().Err, "split them across several gateway ids")
		require.Empty(t, f.took())

		s.define(s.set.Services[:rollcallv1.MaxServicesPerCall]...)
		synctest.Wait()
		require.NoError(t, g.Status().Err)
		require.Equal(t, rollcallv1.MaxServicesPerCall, g.Status().Registered)

		heavy := services("a", "b")
		heavy[0].WorkerRef.Labels = map[string]string{"ballast": strings.Repeat("x", rollcallv1.MaxBytesPerCall)}
		s.define(heavy...)
		synctest.Wait()
		require.ErrorAs(t, g.Status().Err, &large)
	})
}

func TestGateway_SourceFails_ReportsAndRecovers(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		s := newSource(services("a")...)
		s.err = errors.New("disk on fire")
		g := f.gateway(s)
		synctest.Wait()
		require.ErrorContains(t, g.Status().Err, "disk on fire")
		s.change(func() { s.err, s.set.Services = nil, services("a", "a") })
		synctest.Wait()
		require.ErrorContains(t, g.Status().Err, `defines "a" twice`)
		s.define(services("a")...)
		synctest.Wait()
		require.NoError(t, g.Status().Err)
	})
}

func TestGateway_SourceIncomplete_RemovesNothing(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		mine := &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "edge-1"}
		f.directory["old"] = &rollcallv1.ServiceRecord{Service: service("old"), Owner: mine}
		s := newSource()
		s.set.Complete = false
		g := f.gateway(s)
		synctest.Wait()
		require.Empty(t, f.took())
		require.True(t, g.Status().Synced)

		s.define(services("a", "b")...)
		synctest.Wait()
		require.Equal(t, []string{"a", "b", "old"}, f.ids(edge("edge-1")))
		s.define(services("b", "c")...)
		synctest.Wait()
		require.Equal(t, []string{"b", "c", "old"}, f.ids(edge("edge-1")), "services that this run registered may be removed")
		f.lead("n2", 2)
		pass(time.Second)
		require.Equal(t, []string{"b", "c", "old"}, f.ids(edge("edge-1")))
		require.True(t, g.Status().Synced)

		s.change(func() { s.set.Complete = true })
		pass(70 * time.Second)
		require.Equal(t, []string{"b", "c"}, f.ids(edge("edge-1")))
		require.NoError(t, g.end())
	})
}

func TestGateway_EmptyStaticSet_RemovesNothing(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		mine := &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "edge-1"}
		f.directory["old"] = &rollcallv1.ServiceRecord{Service: service("old"), Owner: mine}
		f.gateway(Static())
		pass(5 * time.Minute)
		require.Equal(t, []string{"old"}, f.ids(edge("edge-1")))
	})
}

// Health delays only a first offer: a service that an earlier run registered must be kept while it is down.
func TestGateway_ServiceNotReady_KeepsItsEntry(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		mine := &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "edge-1"}
		other := &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "edge-2"}
		f.directory["down"] = &rollcallv1.ServiceRecord{Service: service("down"), Owner: mine}
		f.directory["ghost"] = &rollcallv1.ServiceRecord{Service: service("ghost"), Owner: mine}
		f.directory["others"] = &rollcallv1.ServiceRecord{Service: service("others"), Owner: other}
		s := newSource(services("up")...)
		s.set.NotReady = services("down", "new", "others")
		g := f.gateway(s)
		synctest.Wait()
		require.Equal(t, []string{"down", "up"}, f.ids(edge("edge-1")))
		require.Equal(t, 2, g.Status().Registered)
		require.Empty(t, g.Status().Refused)
		f.took()

		s.change(func() { s.set.Services, s.set.NotReady = services("up", "new"), services("down", "others") })
		synctest.Wait()
		require.Equal(t, []string{"down", "new", "up"}, f.ids(edge("edge-1")))
		took := f.took()
		require.Len(t, took, 1)
		require.Equal(t, []string{"new"}, idsOf(took[0].GetServices()))

		f.lead("n2", 2)
		pass(time.Second)
		require.Equal(t, []string{"down", "new", "up"}, f.ids(edge("edge-1")))

		s.change(func() { s.set.NotReady = nil }) // now it is no longer defined
		synctest.Wait()
		require.Equal(t, []string{"new", "up"}, f.ids(edge("edge-1")))

		f.set(func() { f.nodes[address("n2")].before = once("list", failureWith(codes.Internal)) })
		f.directory["down"] = &rollcallv1.ServiceRecord{Service: service("down"), Owner: mine}
		s.change(func() { s.set.NotReady = services("down") })
		pass(70 * time.Second)
		require.Equal(t, []string{"down", "new", "up"}, f.ids(edge("edge-1")), "without knowing, nothing is removed")
	})
}

func TestGateway_DeregisterOnStop_RemovesItsServices(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		g := f.gatewayWith(Config{Source: Static(services("a")...), DeregisterOnStop: true})
		synctest.Wait()
		require.NoError(t, g.end())
		require.Empty(t, f.ids(edge("edge-1")))

		g = f.gatewayWith(Config{Source: Static(services("a")...), DeregisterOnStop: true})
		synctest.Wait()
		f.lead("", 1)
		pass(time.Second)
		began := time.Now()
		require.ErrorIs(t, g.end(), ErrNoLeader)
		require.Equal(t, 5*time.Second, time.Since(began))
	})
}

func TestGateway_ForeignCluster_SendsNoWrites(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		g := f.gateway(newSource(services("a")...))
		synctest.Wait()
		f.took()
		f.set(func() {
			for _, n := range f.nodes {
				n.cluster, n.epoch = "cluster-b", 5
			}
		})
		pass(20 * time.Second)
		require.Empty(t, f.took(), "the other cluster receives no writes")
		require.IsType(t, &ForeignClusterError{}, g.Status().Err)
		require.False(t, g.Status().Synced)
		f.set(func() {
			for _, n := range f.nodes {
				n.cluster = "cluster-a"
			}
		})
		pass(20 * time.Second)
		require.NoError(t, g.Status().Err)
		require.True(t, g.Status().Synced)
	})
}

// A running gateway writes nothing to a cluster that was founded again, and its log names the remedy: a restart.
func TestGateway_ClusterFoundedAgain_LogsRemedyAndRegistersAfterRestart(t *testing.T) {
	setup(t, func(t *testing.T, f *fleet) {
		var log bytes.Buffer // the bubble's goroutines are idle when the test reads it
		cfg := f.config("n1", "n2", "n3")
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		g := f.gatewayWith(Config{ClientConfig: cfg, Source: Static(services("a")...)})
		synctest.Wait()
		f.took()
		f.set(func() {
			for _, n := range f.nodes {
				n.cluster = "cluster-b"
			}
			clear(f.directory)
		})
		pass(2 * time.Minute)
		synctest.Wait()
		require.Empty(t, f.took())
		require.IsType(t, &ForeignClusterError{}, g.Status().Err)
		reported := 0
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") && strings.Contains(line, "cluster-b") {
				reported++
				require.Contains(t, line, "if the cluster was founded again on purpose, restart this process")
			}
		}
		require.Greater(t, reported, 1, "the client and the gateway report it: %s", log.String())

		require.NoError(t, g.end())
		f.gateway(newSource(services("a")...))
		pass(time.Second)
		require.Equal(t, []string{"a"}, f.ids(edge("edge-1")))
	})
}

func TestGateway_RandomFaults_DirectoryMatchesTheSource(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			f := newFleet(t, "n1", "n2", "n3")
			s := newSource()
			g := f.gateway(s)
			var want []string
			epoch := uint64(0)
			for range 60 {
				switch rnd.IntN(6) {
				case 0, 1:
					want = nil
					for i := range rnd.IntN(6) {
						if rnd.IntN(2) == 0 {
							want = append(want, fmt.Sprintf("s-%d", i))
						}
					}
					s.define(services(want...)...)
				case 2:
					epoch++
					f.lead(fmt.Sprintf("n%d", 1+rnd.IntN(3)), epoch)
				case 3:
					f.lead("", epoch)
				case 4:
					n := f.node(fmt.Sprintf("n%d", 1+rnd.IntN(3)))
					hook := once("register", failureWith(codes.Unknown, &rollcallv1.UnknownOutcome{}))
					f.set(func() { n.before, n.after = nil, nil })
					if rnd.IntN(2) == 0 {
						f.set(func() { n.before = hook })
					} else {
						f.set(func() { n.after = hook })
					}
				case 5:
					n := f.node(fmt.Sprintf("n%d", 1+rnd.IntN(3)))
					f.set(func() { n.hangs = !n.hangs })
				}
				pass(time.Duration(rnd.IntN(400)) * time.Millisecond)
			}
			f.set(func() {
				for _, n := range f.nodes {
					n.hangs, n.before, n.after = false, nil, nil
				}
			})
			f.lead("n2", epoch+1)
			pass(15 * time.Second) // more than a call to a hanging node may take
			require.Equal(t, append([]string{}, want...), f.ids(edge("edge-1")), "seed %d", seed)
			require.True(t, g.Status().Synced, "seed %d: %+v", seed, g.Status())
		})
	}
}

func TestNew_InvalidConfig_ReportsEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := New(Config{ID: "Edge_1", ResyncInterval: time.Millisecond, DeregisterTimeout: -1})
	for _, complaint := range []string{`id: "Edge_1" is not a DNS label`, "source: is missing", "resync interval: 1ms is shorter", "deregister timeout", "at least one address"} {
		require.ErrorContains(t, err, complaint)
	}
}

// An owner that is silent for three minutes may lose its services.
func TestNew_ResyncInterval_AtMostTwoMinutes(t *testing.T) {
	t.Parallel()
	cfg := Config{ClientConfig: ClientConfig{Coordinators: []string{"n1:7400"}}, ID: "edge-1", Source: Static(services("a")...)}
	cfg.ResyncInterval = 2 * time.Minute
	g, err := New(cfg)
	require.NoError(t, err)
	require.NoError(t, g.Client().Close())
	cfg.ResyncInterval = 2*time.Minute + time.Second
	_, err = New(cfg)
	require.ErrorContains(t, err, "resync interval: 2m1s is longer than 2m0s")
}
