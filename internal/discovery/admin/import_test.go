package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/discovery/directoryfile"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// exported returns the file of a directory.
func exported(t *testing.T, s *fsm.State) *directoryfile.File {
	t.Helper()
	var b bytes.Buffer
	_, err := directoryfile.Write(&b, s, time.Now())
	require.NoError(t, err)
	f, err := ReadFile(&b)
	require.NoError(t, err)
	return f
}

// services returns a directory's services without their versions.
func services(s *fsm.State) map[string]string {
	all := map[string]string{}
	for e := range s.All() {
		all[e.ID] = e.Service().GetWorkerRef().GetUrl() + " of " + serviceOf(e.Record()).Owner
	}
	return all
}

func ids(list []Service) []string {
	all := []string{}
	for _, s := range list {
		all = append(all, s.ID)
	}
	return all
}

func TestImport_ExportedDirectory_IsRestored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 1)
		leader, a := c.leader(), c.admin()
		register := func(force bool, all ...*rollcallv1.Service) {
			t.Helper()
			_, err := a.Register(t.Context(), all, force)
			require.NoError(t, err)
		}
		read := func() *fsm.State {
			t.Helper()
			s, err := a.ReadDirectory(t.Context())
			require.NoError(t, err)
			return s
		}
		register(false, service("a", "http://a"), service("b", "http://b"), service("same", "http://same"))
		registerAsGateway(t, a, service("g", "http://g"))
		before := read()
		file := exported(t, before)
		register(true, service("b", "http://other"), service("g", "http://g"), service("x", "http://x"))
		_, err := a.Deregister(t.Context(), []string{"a"}, false)
		require.NoError(t, err)
		changed := read()

		plan, err := a.PlanImport(t.Context(), file)
		require.NoError(t, err)
		require.Equal(t, []string{leader.Cluster, leader.Cluster}, []string{plan.Cluster, plan.From})
		require.Equal(t, [][]string{{"a"}, {"x"}}, [][]string{ids(plan.Added), ids(plan.Removed)})
		require.Equal(t, 1, plan.Unchanged)
		require.Len(t, plan.Changed, 2)
		require.Equal(t, []string{"http://other", "http://b"}, []string{plan.Changed[0].Before.URL, plan.Changed[0].After.URL})
		require.Equal(t, []string{"operator", "gateway/edge-g"}, []string{plan.Changed[1].Before.Owner, plan.Changed[1].After.Owner}, "another owner is a change")
		require.Equal(t, services(changed), services(read()), "a plan changes nothing")

		done, err := a.Import(t.Context(), file)
		require.NoError(t, err)
		require.Equal(t, []uint32{3, 1, 1}, []uint32{done.Registered, done.Unchanged, done.Removed})
		require.Equal(t, services(before), services(read()))
		plan, err = a.PlanImport(t.Context(), file)
		require.NoError(t, err)
		require.Equal(t, &ImportPlan{Cluster: leader.Cluster, From: leader.Cluster, Added: []Service{}, Changed: []Changed{}, Removed: []Service{}, Unchanged: 4}, plan)
	})
}

// A file is sent in several messages, and has the services of all of them.
func TestImport_SeveralMessages_AreOneImport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 1)
		c.leader()
		a := c.admin()
		f := large(5000)
		require.Greater(t, len(importParts(f)), 2)
		done, err := a.Import(t.Context(), f)
		require.NoError(t, err)
		require.EqualValues(t, 5000, done.Registered)
		plan, err := a.PlanImport(t.Context(), f)
		require.NoError(t, err)
		require.Equal(t, []int{0, 0, 0, 5000}, []int{len(plan.Added), len(plan.Changed), len(plan.Removed), plan.Unchanged})
	})
}

// large returns a file of n services, of about 200 bytes each.
func large(n int) *directoryfile.File {
	f := new(directoryfile.File)
	for i := range n {
		f.Records = append(f.Records, &rollcallv1.ServiceRecord{
			Service: service(fmt.Sprintf("s-%05d", i), fmt.Sprintf("http://a/%0100d", i)), Owner: operator().Owner,
		})
	}
	return f
}

// A leader that ends before the last message has certainly not imported the file, so the import begins again. A lost answer to
// the last message is an unknown outcome.
func TestImport_LeaderLost_OutcomeIsKnownOrUnknown(t *testing.T) {
	t.Parallel()
	type stream = grpc.ClientStreamingServer[rollcallv1.ImportServicesRequest, rollcallv1.ImportServicesResponse]
	// whole reads the messages to the last one, and answers.
	whole := func(s stream) error {
		for {
			req, err := s.Recv()
			if err != nil {
				return err
			}
			if req.End == nil {
				continue
			}
			if _, err := s.Recv(); !errors.Is(err, io.EOF) {
				return errors.New("a message after the last one")
			}
			return s.SendAndClose(&rollcallv1.ImportServicesResponse{Registered: uint32(req.End.Services)})
		}
	}
	// ends takes one message, and ends after a while.
	ends := func(s stream, after time.Duration) error {
		if _, err := s.Recv(); err != nil {
			return err
		}
		pass(after)
		return status.Error(codes.Unavailable, "the process ended")
	}
	for name, tc := range map[string]struct {
		imports func(t *testing.T, f *fake, s stream, call int) error
		calls   int // 0 for many
		err     string
		unknown bool
	}{
		"not established at first": {calls: 3, imports: func(t *testing.T, _ *fake, s stream, call int) error {
			if call < 3 {
				return refusal(t, codes.Unavailable, &rollcallv1.NotEstablished{})
			}
			return whole(s)
		}},
		"ended before the last message": {calls: 3, imports: func(_ *testing.T, _ *fake, s stream, call int) error {
			if call < 3 {
				return ends(s, 0)
			}
			return whole(s)
		}},
		"ended after a long upload": {calls: 2, imports: func(_ *testing.T, _ *fake, s stream, call int) error {
			if call < 2 {
				return ends(s, 2*timeout)
			}
			return whole(s)
		}},
		"ends each time": {err: "the leader is not established yet: the process ended", imports: func(_ *testing.T, _ *fake, s stream, _ int) error {
			return ends(s, 0)
		}},
		"answer lost": {calls: 1, unknown: true, err: "error reading from server: EOF", imports: func(_ *testing.T, f *fake, s stream, _ int) error {
			for {
				if req, err := s.Recv(); err != nil || req.End != nil {
					break
				}
			}
			go f.server.Stop()
			pass(time.Second)
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int32
				f := new(fake)
				f.imports = func(s stream) error { return tc.imports(t, f, s, int(calls.Add(1))) }
				done, err := f.admin(t).Import(t.Context(), large(5000)) // more than a connection takes unread
				if tc.err == "" {
					require.NoError(t, err)
					require.EqualValues(t, 5000, done.Registered)
				} else {
					require.ErrorContains(t, err, tc.err)
				}
				_, unknown := errors.AsType[*gateway.UnknownOutcomeError](err)
				require.Equal(t, tc.unknown, unknown, "%v", err)
				if tc.calls > 0 {
					require.EqualValues(t, tc.calls, calls.Load())
				}
			})
		})
	}
}

func TestReadFile_NothingToImport_IsRefused(t *testing.T) {
	t.Parallel()
	var empty bytes.Buffer
	_, err := directoryfile.Write(&empty, fsm.New().State(), time.Now())
	require.NoError(t, err)
	_, err = ReadFile(&empty)
	require.ErrorIs(t, err, ErrNothingToImport)
	_, err = ReadFile(strings.NewReader("services:\n"))
	require.ErrorAs(t, err, new(*directoryfile.Error))
}

func TestSnapshot_RealCoordinator_HasTheServices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 1)
		leader, a := c.leader(), c.admin()
		_, err := a.Register(t.Context(), []*rollcallv1.Service{service("a", "http://a")}, false)
		require.NoError(t, err)
		snapshot, from, err := a.Snapshot(t.Context())
		require.NoError(t, err)
		require.Equal(t, []any{leader.Node, leader.Epoch}, []any{from.Node, from.Epoch})
		state, err := fsm.ReadSnapshot(snapshot)
		require.NoError(t, err)
		require.Equal(t, []string{"a"}, slices.Collect(maps.Keys(services(state))))

		c.stop("c1")
		_, _, err = a.Snapshot(t.Context())
		require.ErrorIs(t, err, gateway.ErrNoLeader)
		_, err = a.ReadDirectory(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// A directory that lacks an acknowledged write is not returned, nor one that was cut.
func TestReadDirectory_LeaderFails_IsRefused(t *testing.T) {
	t.Parallel()
	var whole bytes.Buffer
	require.NoError(t, fsm.New().State().WriteSnapshot(&whole))
	for name, tc := range map[string]struct {
		index    uint64 // of the leader that answers first
		snapshot func(send func([]byte) error) error
		err      string
	}{
		"slow, in small chunks": {snapshot: func(send func([]byte) error) error {
			half := whole.Len() / 2
			err := errors.Join(send(whole.Bytes()[:half]), send(nil))
			pass(2 * timeout)
			return errors.Join(err, send(whole.Bytes()[half:]))
		}},
		"leads no longer": {index: 1, err: "read the directory from c1, which leads no longer: the leader is not established yet", snapshot: func(send func([]byte) error) error {
			return send(whole.Bytes())
		}},
		"cut": {err: "read the directory from c1: ", snapshot: func(send func([]byte) error) error {
			return send(whole.Bytes()[:whole.Len()-1])
		}},
		"refused": {err: "another snapshot is read", snapshot: func(func([]byte) error) error {
			return status.Error(codes.ResourceExhausted, "another snapshot is read")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &fake{snapshot: tc.snapshot, list: func(*rollcallv1.ListServicesRequest) *rollcallv1.ListServicesResponse {
					return &rollcallv1.ListServicesResponse{Index: tc.index}
				}}
				state, err := f.admin(t).ReadDirectory(t.Context())
				if tc.err == "" {
					require.NoError(t, err)
					require.Zero(t, state.Len())
					return
				}
				require.ErrorContains(t, err, tc.err)
			})
		})
	}
}
