package coordinator_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

type importStream = grpc.ClientStreamingClient[rollcallv1.ImportServicesRequest, rollcallv1.ImportServicesResponse]

var edge = &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: "edge"}

// importPart returns a message of an import.
func importPart(owner *rollcallv1.Owner, ids ...string) *rollcallv1.ImportServicesRequest {
	req := new(rollcallv1.ImportServicesRequest)
	for _, id := range ids {
		req.Records = append(req.Records, &rollcallv1.ServiceRecord{Service: service(id), Owner: owner})
	}
	return req
}

func importEnd(services uint64) *rollcallv1.ImportServicesRequest {
	return &rollcallv1.ImportServicesRequest{End: &rollcallv1.ImportEnd{Services: services}}
}

// beginImport opens an import on a node and sends messages.
func (c *simCluster) beginImport(ctx context.Context, id string, parts ...*rollcallv1.ImportServicesRequest) importStream {
	stream, err := c.admin(id).ImportServices(ctx)
	require.NoError(c.t, err)
	for _, part := range parts {
		if stream.Send(part) != nil {
			break // CloseAndRecv returns the reason
		}
	}
	return stream
}

// stage begins an import on a node, and waits until its first part is staged. before is a snapshot without it.
func (c *simCluster) stage(ctx context.Context, id string) (stream importStream, before []byte) {
	c.t.Helper()
	before = c.takeSnapshot(id)
	stream = c.beginImport(ctx, id, importPart(edge, "x"))
	c.await("staged", func() bool { return len(c.takeSnapshot(id)) > len(before)+40 })
	return stream, before
}

// importAll imports services of one gateway on the current leader, a part each.
func (c *simCluster) importAll(ids ...string) (*rollcallv1.ImportServicesResponse, error) {
	leader, _ := c.leader()
	var parts []*rollcallv1.ImportServicesRequest
	for _, id := range ids {
		parts = append(parts, importPart(edge, id))
	}
	return c.beginImport(c.t.Context(), leader, append(parts, importEnd(uint64(len(ids))))...).CloseAndRecv()
}

// everywhere waits until every replica holds exactly the ids.
func (c *simCluster) everywhere(ids ...string) {
	c.t.Helper()
	for id := range c.nodes {
		c.await(fmt.Sprintf("%v on %s", ids, id), func() bool { return slices.Equal(c.ids(id), ids) })
	}
}

// nothingStaged checks that a snapshot of a node has no part of an import: it is as long as one of its services alone.
func (c *simCluster) nothingStaged(id string, before []byte) {
	c.t.Helper()
	require.InDelta(c.t, len(before), len(c.takeSnapshot(id)), 40, "the snapshot must hold no staged import")
}

func TestImport_ReplacesTheDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a", "b", "c")
		leader, epoch := c.leader()

		first := importPart(edge, "a", "b")
		first.Owners = []*rollcallv1.ImportedOwner{{Owner: edge, Incarnation: 5}}
		operators := importPart(operator().Owner, "c", "d")
		resp, err := c.beginImport(t.Context(), leader, first, operators, importEnd(4)).CloseAndRecv()
		require.NoError(t, err)
		require.Equal(t, []any{epoch, uint32(3), uint32(1), uint32(0)}, []any{resp.Epoch, resp.Registered, resp.Unchanged, resp.Removed})
		c.everywhere("a", "b", "c", "d")
		list, err := c.client(leader).ListServices(t.Context(), &rollcallv1.ListServicesRequest{})
		require.NoError(t, err)
		require.Equal(t, "edge", list.Records[0].Owner.Id)
		require.GreaterOrEqual(t, list.Index, resp.Index)

		// An earlier incarnation of the imported gateway is refused, the imported one continues.
		_, err = c.client(leader).RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{Writer: gatewayWriter("edge", 4, 9), Services: []*rollcallv1.Service{service("x")}})
		require.Equal(t, codes.Aborted, status.Code(err), "%v", err)
		registered, err := c.client(leader).RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{Writer: gatewayWriter("edge", 5, 1), Services: []*rollcallv1.Service{service("a")}})
		require.NoError(t, err)
		require.EqualValues(t, 1, registered.Unchanged)

		// A repeat changes nothing.
		resp, err = c.beginImport(t.Context(), leader, first, operators, importEnd(4)).CloseAndRecv()
		require.NoError(t, err)
		require.EqualValues(t, 4, resp.Unchanged)
	})
}

func TestImport_TenThousandServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("former")
		leader, _ := c.leader()
		var parts []*rollcallv1.ImportServicesRequest
		for part := range 10 {
			ids := make([]string, 1000)
			for i := range ids {
				ids[i] = fmt.Sprintf("s-%05d", part*1000+i)
			}
			parts = append(parts, importPart(edge, ids...))
		}
		resp, err := c.beginImport(t.Context(), leader, append(parts, importEnd(10_000))...).CloseAndRecv()
		require.NoError(t, err)
		require.EqualValues(t, 10_000, resp.Registered)
		require.EqualValues(t, 1, resp.Removed)
		for id := range c.nodes {
			c.await("all on "+id, func() bool { return c.nodes[id].Directory().State().Len() == 10_000 })
		}
	})
}

// The leader dies between two parts. The next leader must have nothing of the import, and a repeat must do all of it.
func TestImport_LeaderKilledBetweenParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a", "b")
		former, _ := c.leader()
		before := c.takeSnapshot(former)
		stream := c.beginImport(t.Context(), former, importPart(edge, "x"), importPart(edge, "y"))
		c.await("staged", func() bool { return len(c.takeSnapshot(former)) > len(before)+40 })
		for id := range c.nodes { // also on the next leader
			c.await("staged on "+id, func() bool { return len(c.takeSnapshot(id)) > len(before)+40 })
		}
		stores := c.nodes[former].stores
		c.kill(former)
		_, err := stream.CloseAndRecv()
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)

		next, _ := c.leader()
		c.everywhere("a", "b")
		c.nothingStaged(next, before)
		_, err = c.importAll("x", "y")
		require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
		require.ErrorContains(t, err, former+" does not answer")
		c.start(former, stores)
		c.await("its version is known", func() bool { _, err := c.importAll("x", "y"); return err == nil })
		c.everywhere("x", "y")
	})
}

// The leader is lost at a random time of an import. Each replica must always hold the former or the imported directory.
// The answer must not contradict it, and a repeat must complete it.
func TestImport_LeaderLost_WholeOrNotAtAll(t *testing.T) {
	outcomes := make(map[bool]int)
	for seed := range uint64(24) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 0))
				c := newSimCluster(t, 3, nil)
				former := []string{"a", "b", "c"}
				c.register(former...)
				imported := []string{"b", "u", "v", "w", "x", "y", "z"}
				leader, _ := c.leader()
				c.everywhere(former...)
				c.net.SetLatency(2 * time.Millisecond)

				ctx, stop := context.WithCancel(t.Context())
				torn := make(chan []string, 1)
				go func() {
					defer close(torn)
					nodes := []*simNode{c.nodes["c1"], c.nodes["c2"], c.nodes["c3"]}
					for ctx.Err() == nil {
						for _, n := range nodes {
							var ids []string
							for e := range n.Directory().State().All() {
								ids = append(ids, e.ID)
							}
							if !slices.Equal(ids, former) && !slices.Equal(ids, imported) {
								torn <- ids
								return
							}
						}
						pass(time.Millisecond)
					}
				}()
				answered := make(chan error, 1)
				go func() { _, err := c.importAll(imported...); answered <- err }()
				pass(time.Duration(rnd.Int64N(int64(95 * time.Millisecond))))
				if seed%2 == 0 { // also from the caller
					c.net.Isolate(leader)
					c.net.Reset(leader)
				}
				c.cutFromPeers(leader)
				err := <-answered
				outcomes[err == nil]++
				others := slices.DeleteFunc([]string{"c1", "c2", "c3"}, func(id string) bool { return id == leader })
				next := ""
				c.await("another leads", func() bool {
					for _, id := range others {
						ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
						p, err := c.client(id).Ping(ctx, &rollcallv1.PingRequest{})
						cancel()
						if err == nil && p.Leader.GetNode() == id {
							next = id
						}
					}
					return next != ""
				})
				if err == nil {
					require.Equal(t, imported, c.ids(next), "the import was acknowledged")
				}
				c.net.Heal()
				c.await("the repeat succeeds", func() bool { _, err := c.importAll(imported...); return err == nil })
				c.everywhere(imported...)
				stop()
				require.Empty(t, <-torn)
			})
		})
	}
	require.Len(t, outcomes, 2, "some imports must have been done and some not")
}

// The leader loses its quorum after the last message. The outcome is unknown, and a repeat is harmless.
func TestImport_QuorumLostAtTheEnd_OutcomeIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a")
		leader, _ := c.leader()
		stream := c.beginImport(t.Context(), leader, importPart(edge, "x"))
		synctest.Wait()
		c.cutFromPeers(leader)
		require.NoError(t, stream.Send(importEnd(1)))
		_, err := stream.CloseAndRecv()
		require.Equal(t, codes.Unknown, status.Code(err), "%v", err)
		require.NotEmpty(t, detail[*rollcallv1.UnknownOutcome](t, err).Cause)
		c.net.Heal()
		c.await("the repeat succeeds", func() bool { _, err := c.importAll("x"); return err == nil })
		c.everywhere("x")
	})
}

// The leader loses its quorum between two parts. The import is refused as not done.
func TestImport_QuorumLostBetweenParts_IsNotDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a")
		leader, _ := c.leader()
		stream := c.beginImport(t.Context(), leader, importPart(edge, "x"))
		synctest.Wait()
		c.cutFromPeers(leader)
		require.NoError(t, stream.Send(importPart(edge, "y")))
		_ = stream.Send(importEnd(2))
		_, err := stream.CloseAndRecv()
		require.Contains(t, []codes.Code{codes.FailedPrecondition, codes.Unavailable}, status.Code(err), "%v", err)
		require.NotContains(t, err.Error(), "unknown")
		c.net.Heal()
		c.await("one leads", func() bool { return c.write("b") == nil })
		c.everywhere("a", "b")
	})
}

func TestImport_SecondOneIsRefusedWhileOneRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a")
		leader, _ := c.leader()
		first := c.beginImport(t.Context(), leader, importPart(edge, "x"))
		synctest.Wait()
		_, err := c.importAll("y")
		require.Equal(t, codes.Aborted, status.Code(err), "%v", err)
		require.ErrorContains(t, err, "another import is under way; nothing was imported")
		require.NoError(t, first.Send(importEnd(1)))
		_, err = first.CloseAndRecv()
		require.NoError(t, err)
		c.everywhere("x")
		_, err = c.importAll("y")
		require.NoError(t, err)
		c.everywhere("y")
	})
}

// Writes of others between the parts must not be lost before the import, and are replaced by it.
func TestImport_OtherWritesBetweenParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a")
		leader, _ := c.leader()
		stream := c.beginImport(t.Context(), leader, importPart(edge, "x"))
		synctest.Wait()
		c.register("b")
		c.everywhere("a", "b")
		require.NoError(t, stream.Send(importEnd(1)))
		resp, err := stream.CloseAndRecv()
		require.NoError(t, err)
		require.EqualValues(t, 2, resp.Removed)
		c.everywhere("x")
	})
}

// A caller that leaves or sends nothing must change nothing, and its parts must not stay.
func TestImport_AbandonedIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a")
		leader, _ := c.leader()
		for name, abandon := range map[string]func(importStream, context.CancelFunc){
			"left":   func(_ importStream, cancel context.CancelFunc) { cancel() },
			"silent": func(importStream, context.CancelFunc) { pass(time.Minute) },
			"ended early": func(s importStream, _ context.CancelFunc) {
				_, err := s.CloseAndRecv()
				require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
				require.ErrorContains(t, err, "the stream ended after 1 services, without its last message; nothing was imported")
			},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			stream, before := c.stage(ctx, leader)
			abandon(stream, cancel)
			c.await(name+": dropped", func() bool { return len(c.takeSnapshot(leader)) <= len(before)+40 })
			if name == "silent" {
				err := stream.RecvMsg(new(rollcallv1.ImportServicesResponse))
				require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
				require.ErrorContains(t, err, "nothing was imported")
			}
			cancel()
			synctest.Wait() // the import is over when its call has returned, which follows the drop
			c.everywhere("a")
		}
		_, err := c.importAll("x")
		require.NoError(t, err)
	})
}

// The caller leaves while the last message waits for its turn. It was certainly not done, and nothing may stay staged.
func TestImport_LastMessageNotProposed_IsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a")
		leader, _ := c.leader()
		ctx, cancel := context.WithCancel(t.Context())
		ids := make([]string, 50)
		for i := range ids {
			ids[i] = fmt.Sprintf("x%02d", i)
		}
		before := len(c.takeSnapshot(leader))
		stream := c.beginImport(ctx, leader, importPart(edge, ids...))
		c.await("staged", func() bool { return len(c.takeSnapshot(leader)) > before+1000 })
		c.cutFromPeers(leader)
		var writes sync.WaitGroup
		for _, id := range []string{"b", "c"} { // as many as Raft takes at a time
			writes.Go(func() {
				_, err := c.client(leader).RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{Writer: operator(), Services: []*rollcallv1.Service{service(id)}})
				require.NoError(t, err)
			})
			synctest.Wait()
		}
		require.NoError(t, stream.Send(importEnd(uint64(len(ids)))))
		synctest.Wait()
		cancel()
		synctest.Wait()
		c.net.Heal()
		writes.Wait()
		c.await("dropped", func() bool { return len(c.takeSnapshot(leader)) < before+500 })
		c.everywhere("a", "b", "c")
	})
}

// A voter that goes away during an import may come back as an older version. The refusal must name it, and nothing may stay staged.
func TestImport_VoterGoesAway_IsRefusedAndDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a")
		leader, _ := c.leader()
		stream, before := c.stage(t.Context(), leader)
		away := c.follower()
		c.net.Isolate(away)
		pass(20 * time.Second)
		require.NoError(t, stream.Send(importPart(edge, "y")))
		_, err := stream.CloseAndRecv()
		require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
		require.ErrorContains(t, err, away+" has not answered for 10s")
		c.nothingStaged(leader, before)
		c.net.Heal()
		c.everywhere("a")
	})
}

func TestImport_InvalidIsRefusedWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, nil)
		c.register("kept")
		leader, _ := c.leader()
		bad := importPart(edge, "x")
		bad.Records[0].Service.WorkerRef.Url = "ftp://x"
		large := importPart(edge)
		for i := range 70 {
			s := service(fmt.Sprintf("s-%02d", i))
			s.WorkerRef.Labels = labels(60, 250)
			large.Records = append(large.Records, &rollcallv1.ServiceRecord{Service: s, Owner: edge})
		}
		owners := func(o *rollcallv1.Owner) *rollcallv1.ImportServicesRequest {
			return &rollcallv1.ImportServicesRequest{Owners: []*rollcallv1.ImportedOwner{{Owner: o, Incarnation: 1}}}
		}
		for name, tc := range map[string]struct {
			parts []*rollcallv1.ImportServicesRequest
			field string
			code  codes.Code
		}{
			"bad service":          {[]*rollcallv1.ImportServicesRequest{importPart(edge, "a"), bad}, "records[0].service.worker_ref.url", codes.InvalidArgument},
			"no service":           {[]*rollcallv1.ImportServicesRequest{{Records: []*rollcallv1.ServiceRecord{{Owner: edge}}}}, "records[0].service.id", codes.InvalidArgument},
			"twice in a part":      {[]*rollcallv1.ImportServicesRequest{importPart(edge, "a", "a")}, "records[1].service.id", codes.InvalidArgument},
			"twice in two parts":   {[]*rollcallv1.ImportServicesRequest{importPart(edge, "a"), importPart(edge, "a")}, "records[0].service.id", codes.InvalidArgument},
			"no owner":             {[]*rollcallv1.ImportServicesRequest{importPart(nil, "a")}, "records[0].owner", codes.InvalidArgument},
			"unknown owner":        {[]*rollcallv1.ImportServicesRequest{importPart(&rollcallv1.Owner{Kind: 9}, "a")}, "records[0].owner", codes.InvalidArgument},
			"gateway without id":   {[]*rollcallv1.ImportServicesRequest{importPart(&rollcallv1.Owner{Kind: edge.Kind}, "a")}, "records[0].owner", codes.InvalidArgument},
			"named operator":       {[]*rollcallv1.ImportServicesRequest{importPart(&rollcallv1.Owner{Kind: operator().Owner.Kind, Id: "x"}, "a")}, "records[0].owner", codes.InvalidArgument},
			"incarnation, static":  {[]*rollcallv1.ImportServicesRequest{owners(fsm.Static.Proto())}, "owners[0].owner.kind", codes.InvalidArgument},
			"incarnation, no id":   {[]*rollcallv1.ImportServicesRequest{owners(&rollcallv1.Owner{Kind: edge.Kind})}, "owners[0].owner", codes.InvalidArgument},
			"empty part":           {[]*rollcallv1.ImportServicesRequest{importPart(edge)}, "records", codes.InvalidArgument},
			"empty import":         {[]*rollcallv1.ImportServicesRequest{importEnd(0)}, "end.services", codes.InvalidArgument},
			"another count":        {[]*rollcallv1.ImportServicesRequest{importPart(edge, "a"), importEnd(2)}, "end.services", codes.InvalidArgument},
			"services at the end":  {[]*rollcallv1.ImportServicesRequest{importPart(edge, "a"), {Records: importPart(edge, "b").Records, End: &rollcallv1.ImportEnd{Services: 1}}}, "end", codes.InvalidArgument},
			"more than a megabyte": {[]*rollcallv1.ImportServicesRequest{large}, "", codes.ResourceExhausted},
		} {
			_, err := c.beginImport(t.Context(), leader, tc.parts...).CloseAndRecv()
			require.Equal(t, tc.code, status.Code(err), "%s: %v", name, err)
			if tc.code == codes.InvalidArgument {
				require.Equal(t, tc.field, detail[*errdetails.BadRequest](t, err).FieldViolations[0].Field, name)
			}
			c.everywhere("kept")
		}
	})
}

func TestImport_FollowerRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		leader, _ := c.leader()
		follower := c.follower()
		c.await("the follower knows the leader", func() bool {
			_, err := c.beginImport(t.Context(), follower, importPart(edge, "x"), importEnd(1)).CloseAndRecv()
			return status.Code(err) == codes.FailedPrecondition && detail[*rollcallv1.NotLeader](t, err).Leader.GetNode() == leader
		})
	})
}

// The configuration defines the static fleet, so the leader must correct it after an import.
func TestImport_StaticFleetStaysAsConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) {
			cfg.RelayerCount, cfg.RelayerURLTemplate = 2, "http://oz-relayer-{N}:3000"
		})
		c.everywhere("oz-relayer-0", "oz-relayer-1")
		leader, _ := c.leader()
		_, err := c.beginImport(t.Context(), leader, importPart(edge, "a"), importPart(fsm.Static.Proto(), "oz-relayer-1", "oz-relayer-7"), importEnd(3)).CloseAndRecv()
		require.NoError(t, err)
		c.everywhere("a", "oz-relayer-0", "oz-relayer-1")

		// An import that only adds a static service removes none.
		_, err = c.beginImport(t.Context(), leader, importPart(edge, "a"), importPart(fsm.Static.Proto(), "oz-relayer-0", "oz-relayer-1", "oz-relayer-2"), importEnd(4)).CloseAndRecv()
		require.NoError(t, err)
		c.everywhere("a", "oz-relayer-0", "oz-relayer-1")
	})
}
