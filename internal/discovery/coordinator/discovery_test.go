package coordinator_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// detail returns the detail of type T in a refusal.
func detail[T proto.Message](t *testing.T, err error) T {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if m, ok := d.(T); ok {
			return m
		}
	}
	var none T
	require.FailNow(t, "the refusal lacks a detail", "%T in %v", none, err)
	return none
}

func TestPing_EveryNode_NamesTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, func(cfg *coordinator.Config) { cfg.AdvertiseClient = cfg.ID + ".example.org:443" })
		leader, epoch := c.leader()
		want := &rollcallv1.Leader{Node: leader, Address: leader + ":7400", ClientAddress: leader + ".example.org:443"}
		for id := range c.nodes {
			c.await("everybody knows", func() bool {
				p, err := c.client(id).Ping(t.Context(), &rollcallv1.PingRequest{})
				return err == nil && p.Epoch == epoch && p.Node == id && p.Cluster != "" && proto.Equal(want, p.Leader)
			})
		}
	})
}

func TestFollower_LeaderOnlyCalls_RefusesAndNamesTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		leader, epoch := c.leader()
		follower := c.client(c.follower())
		c.await("the follower knows", func() bool {
			p, err := follower.Ping(t.Context(), &rollcallv1.PingRequest{})
			return err == nil && p.Leader != nil && p.Epoch == epoch
		})
		_, register := follower.RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{Writer: operator(), Services: []*rollcallv1.Service{service("a")}})
		_, deregister := follower.DeregisterServices(t.Context(), &rollcallv1.DeregisterServicesRequest{Writer: operator(), Ids: []string{"a"}})
		_, list := follower.ListServices(t.Context(), &rollcallv1.ListServicesRequest{})
		_, getStatus := follower.GetStatus(t.Context(), &rollcallv1.GetStatusRequest{})
		for what, err := range map[string]error{"register": register, "deregister": deregister, "list": list, "status": getStatus} {
			require.Equal(t, codes.FailedPrecondition, status.Code(err), what)
			d := detail[*rollcallv1.NotLeader](t, err)
			require.Equal(t, leader, d.Leader.GetNode(), what)
			require.Equal(t, epoch, d.Epoch, what)
		}
		_, err := follower.ListServices(t.Context(), &rollcallv1.ListServicesRequest{Stale: true})
		require.NoError(t, err)
	})
}

func TestRegisterServices_InvalidRequest_ReportsEveryViolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, nil)
		leader, _ := c.leader()
		client := c.client(leader)
		c.register("kept")
		good := service("good")
		cases := map[string]struct {
			req    *rollcallv1.RegisterServicesRequest
			fields []string
		}{
			"no writer":           {&rollcallv1.RegisterServicesRequest{Services: []*rollcallv1.Service{good}}, []string{"writer.owner.kind"}},
			"static from outside": {&rollcallv1.RegisterServicesRequest{Writer: &rollcallv1.Writer{Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_STATIC}}, Services: []*rollcallv1.Service{good}}, []string{"writer.owner.kind"}},
			"unfenced gateway":    {&rollcallv1.RegisterServicesRequest{Writer: gatewayWriter("", 0, 0), Services: []*rollcallv1.Service{good}}, []string{"writer.owner.id", "writer.incarnation", "writer.seq"}},
			"half-fenced operator": {&rollcallv1.RegisterServicesRequest{
				Writer:   &rollcallv1.Writer{Owner: &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_OPERATOR, Id: "x"}, Seq: 1},
				Services: []*rollcallv1.Service{good},
			}, []string{"writer.owner.id", "writer.seq"}},
			"force by a gateway": {&rollcallv1.RegisterServicesRequest{Writer: gatewayWriter("edge", 1, 1), Services: []*rollcallv1.Service{good}, Force: true}, []string{"force"}},
			"nothing":            {&rollcallv1.RegisterServicesRequest{Writer: operator()}, []string{"services"}},
			"empty full set":     {&rollcallv1.RegisterServicesRequest{Writer: operator(), FullSet: true}, []string{"services"}},
			"bad services": {&rollcallv1.RegisterServicesRequest{Writer: operator(), Services: []*rollcallv1.Service{
				good, {}, {Id: "UPPER", Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: "ftp://host"}}, service("good"),
			}}, []string{
				"services[1].id", "services[1].kind", "services[1].worker_ref.url",
				"services[2].id", "services[2].worker_ref.url", "services[3].id",
			}},
			"relayers that consumers refuse": {&rollcallv1.RegisterServicesRequest{Writer: operator(), Services: []*rollcallv1.Service{
				good,
				{Id: "a", Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: "grpc://a:1"}},
				{Id: "b", Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: "http://b/?x=1"}},
				{Id: "c", Kind: "indexer", WorkerRef: &rollcallv1.WorkerRef{Url: "grpc://c:1"}},
				{Id: "d", Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: "http://d/#x"}},
			}}, []string{"services[1].worker_ref.url", "services[2].worker_ref.url", "services[4].worker_ref.url"}},
			"large service": {&rollcallv1.RegisterServicesRequest{Writer: operator(), Services: []*rollcallv1.Service{
				{Id: "a", Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: "http://a", Labels: labels(64, 255)}},
			}}, []string{"services[0].worker_ref"}},
		}
		for name, tc := range cases {
			_, err := client.RegisterServices(t.Context(), tc.req)
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%s: %v", name, err)
			var fields []string
			for _, v := range detail[*errdetails.BadRequest](t, err).FieldViolations {
				require.NotEmpty(t, v.Description)
				fields = append(fields, v.Field)
			}
			require.ElementsMatch(t, tc.fields, fields, name)
		}
		for name, ids := range map[string][]string{"none": nil, "empty": {""}, "twice": {"kept", "kept"}, "not a label": {"a b"}} {
			_, err := client.DeregisterServices(t.Context(), &rollcallv1.DeregisterServicesRequest{Writer: operator(), Ids: ids})
			require.Equal(t, codes.InvalidArgument, status.Code(err), name)
		}
		_, err := client.ListServices(t.Context(), &rollcallv1.ListServicesRequest{PageSize: 10_001, Ids: make([]string, 10_001)})
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.Len(t, detail[*errdetails.BadRequest](t, err).FieldViolations, 2)

		list, err := client.ListServices(t.Context(), &rollcallv1.ListServicesRequest{})
		require.NoError(t, err)
		require.Len(t, list.Records, 1, "nothing changed")
	})
}

// labels returns n labels of the given size, about 16 KiB in all for 64 of 255.
func labels(n, size int) map[string]string {
	m := make(map[string]string, n)
	for i := range n {
		m[fmt.Sprintf("label-%02d", i)] = strings.Repeat("x", size)
	}
	return m
}

func TestRegisterServices_OversizeBatch_ReportsTheLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, nil)
		leader, _ := c.leader()
		many := make([]*rollcallv1.Service, rollcallv1.MaxServicesPerCall+1)
		for i := range many {
			many[i] = service(fmt.Sprintf("s-%d", i))
		}
		_, err := c.client(leader).RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{Writer: operator(), Services: many})
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		require.EqualValues(t, len(many), detail[*rollcallv1.TooLarge](t, err).Services)

		large := many[:400]
		for _, s := range large {
			s.WorkerRef.Labels = labels(60, 200)
		}
		_, err = c.client(leader).RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{Writer: operator(), Services: large})
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		require.Greater(t, detail[*rollcallv1.TooLarge](t, err).Bytes, uint64(rollcallv1.MaxBytesPerCall))

		_, err = c.client(leader).RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{Writer: operator(), Services: many[400 : 400+5000]})
		require.NoError(t, err, "a batch within the limits is accepted")
	})
}

func TestRegisterServices_OwnersAndFences_AreEnforced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		leader, epoch := c.leader()
		client := c.client(leader)
		write := func(w *rollcallv1.Writer, ids ...string) (*rollcallv1.RegisterServicesResponse, error) {
			req := &rollcallv1.RegisterServicesRequest{Writer: w}
			for _, id := range ids {
				req.Services = append(req.Services, service(id))
			}
			return client.RegisterServices(t.Context(), req)
		}
		first, err := write(gatewayWriter("a", 1, 5), "x", "y")
		require.NoError(t, err)

		again, err := write(gatewayWriter("a", 1, 5), "x", "y")
		require.NoError(t, err)
		require.True(t, proto.Equal(first, again), "a repeated seq gets the same answer: %v, %v", first, again)

		_, err = write(gatewayWriter("a", 1, 4), "z")
		require.Equal(t, codes.Aborted, status.Code(err))
		require.EqualValues(t, 5, detail[*rollcallv1.Superseded](t, err).Seq)

		_, err = write(gatewayWriter("b", 1, 1), "free", "x")
		require.Equal(t, codes.AlreadyExists, status.Code(err))
		conflict := detail[*rollcallv1.Conflicts](t, err).Conflicts
		require.Len(t, conflict, 1)
		require.EqualValues(t, 1, conflict[0].Index)
		require.Equal(t, "a", conflict[0].Owner.Id)

		_, err = client.DeregisterServices(t.Context(), &rollcallv1.DeregisterServicesRequest{Writer: gatewayWriter("b", 1, 2), Ids: []string{"x"}})
		require.Equal(t, codes.PermissionDenied, status.Code(err))

		stale := gatewayWriter("a", 1, 6)
		stale.Epoch = epoch + 1
		_, err = write(stale, "x")
		require.Equal(t, codes.Aborted, status.Code(err))
		require.Equal(t, epoch, detail[*rollcallv1.StaleEpoch](t, err).Epoch)

		// A second incarnation must take over even without changes, and the first one must be refused.
		resp, err := write(gatewayWriter("a", 2, 1), "x", "y")
		require.NoError(t, err)
		require.EqualValues(t, 2, resp.Unchanged)
		_, err = write(gatewayWriter("a", 1, 7), "x", "y")
		require.Equal(t, codes.Aborted, status.Code(err))
		require.EqualValues(t, 2, detail[*rollcallv1.Superseded](t, err).Incarnation)

		// An operator may take over entries with force.
		_, err = write(operator(), "x")
		require.Equal(t, codes.AlreadyExists, status.Code(err))
		_, err = client.RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{Writer: operator(), Services: []*rollcallv1.Service{service("x")}, Force: true})
		require.NoError(t, err)
		_, err = client.DeregisterServices(t.Context(), &rollcallv1.DeregisterServicesRequest{Writer: operator(), Ids: []string{"x", "y"}, Force: true})
		require.NoError(t, err)
	})
}

func TestRegisterServices_OwnerSilent_ServicesBecomeFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, nil)
		leader, _ := c.leader()
		client := c.client(leader)
		write := func(id string, seq uint64) error {
			_, err := client.RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{
				Writer: gatewayWriter(id, 1, seq), Services: []*rollcallv1.Service{service("x")},
			})
			return err
		}
		require.NoError(t, write("a", 1))
		pass(2 * time.Minute)
		require.NoError(t, write("a", 2), "unchanged, but the owner counts as active")
		pass(2 * time.Minute)
		require.Equal(t, codes.AlreadyExists, status.Code(write("b", 1)))
		pass(2 * time.Minute)
		require.NoError(t, write("b", 2), "a has been silent for more than three minutes")
		require.Equal(t, codes.AlreadyExists, status.Code(write("a", 3)))
	})
}

func TestRegisterServices_Unchanged_WritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		leader, _ := c.leader()
		req := &rollcallv1.RegisterServicesRequest{Writer: gatewayWriter("a", 1, 1), Services: []*rollcallv1.Service{service("x")}, FullSet: true}
		_, err := c.client(leader).RegisterServices(t.Context(), req)
		require.NoError(t, err)
		index := c.nodes[leader].Directory().State().Index()
		for seq := uint64(2); seq < 10; seq++ {
			req.Writer = gatewayWriter("a", 1, seq)
			resp, err := c.client(leader).RegisterServices(t.Context(), req)
			require.NoError(t, err)
			require.EqualValues(t, 1, resp.Unchanged)
		}
		require.Equal(t, index, c.nodes[leader].Directory().State().Index())
	})
}

// An earlier version registered relayers whose URLs are invalid now. A gateway of it would send its full set again without the refused ones,
// which removes them.
func TestRegisterServices_RelayerURLOfAnEarlierVersion_StaysRegistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		relayer := func(id, url string) *rollcallv1.Service {
			return &rollcallv1.Service{Id: id, Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: url}}
		}
		old, query := relayer("old", "grpc://old:1"), relayer("query", "http://query:3000?x")
		leader, _ := c.leader()
		part := &rollcallv1.ImportServicesRequest{Records: []*rollcallv1.ServiceRecord{{Service: old, Owner: edge}, {Service: query, Owner: edge}}}
		_, err := c.beginImport(t.Context(), leader, part, importEnd(2)).CloseAndRecv() // an import takes what an earlier version registered
		require.NoError(t, err)
		leader, _ = c.leader()
		seq := uint64(0)
		write := func(id string, services ...*rollcallv1.Service) (*rollcallv1.RegisterServicesResponse, error) {
			seq++
			req := &rollcallv1.RegisterServicesRequest{Writer: gatewayWriter(id, 1<<40, seq), Services: services, FullSet: true}
			return c.client(leader).RegisterServices(t.Context(), req)
		}
		refused := func(err error, fields ...string) {
			t.Helper()
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
			var got []string
			for _, v := range detail[*errdetails.BadRequest](t, err).FieldViolations {
				got = append(got, v.Field)
			}
			require.Equal(t, fields, got)
		}
		resp, err := write(edge.Id, service("good"), old, query)
		require.NoError(t, err)
		require.EqualValues(t, 2, resp.Unchanged)
		c.everywhere("good", "old", "query")

		labeled := proto.CloneOf(old)
		labeled.WorkerRef.Labels = map[string]string{"zone": "a"}
		_, err = write(edge.Id, service("good"), labeled, query)
		require.NoError(t, err, "its URL is the same")

		_, err = write(edge.Id, service("good"), old, relayer("query", "http://query:3000?y"), relayer("new", "grpc://new:1"))
		refused(err, "services[2].worker_ref.url", "services[3].worker_ref.url")
		_, err = write("other", old)
		refused(err, "services[0].worker_ref.url")
		c.everywhere("good", "old", "query")
	})
}

// A leader that is cut off from its peers must not answer reads, or report an unchanged registration, from its state.
func TestLeader_CutOffFromPeers_AnswersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		leader, _ := c.leader()
		req := &rollcallv1.RegisterServicesRequest{Writer: gatewayWriter("a", 1, 1), Services: []*rollcallv1.Service{service("x")}}
		_, err := c.client(leader).RegisterServices(t.Context(), req)
		require.NoError(t, err)

		for id := range c.nodes {
			if id != leader {
				c.net.Cut(leader, id)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err = c.client(leader).ListServices(ctx, &rollcallv1.ListServicesRequest{})
		require.Error(t, err)
		req.Writer = gatewayWriter("a", 1, 2)
		_, err = c.client(leader).RegisterServices(ctx, req)
		require.Error(t, err)
		req.Services[0].WorkerRef.Url = "http://elsewhere"
		req.Writer = gatewayWriter("a", 1, 3)
		_, err = c.client(leader).RegisterServices(ctx, req)
		require.Error(t, err)
		stale, err := c.client(leader).ListServices(ctx, &rollcallv1.ListServicesRequest{Stale: true})
		require.NoError(t, err)
		require.Len(t, stale.Records, 1)
		c.net.Heal()
		c.register("y")
	})
}

func TestListServices_PagesFiltersAndFinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, nil)
		leader, _ := c.leader()
		req := &rollcallv1.RegisterServicesRequest{Writer: operator()}
		for i := range 25 {
			s := service(fmt.Sprintf("s-%02d", i))
			if i%5 == 0 {
				s.Kind = "api"
			}
			req.Services = append(req.Services, s)
		}
		_, err := c.client(leader).RegisterServices(t.Context(), req)
		require.NoError(t, err)
		list := func(req *rollcallv1.ListServicesRequest) (ids []string, next string) {
			resp, err := c.client(leader).ListServices(t.Context(), req)
			require.NoError(t, err)
			for _, r := range resp.Records {
				ids = append(ids, r.Service.Id)
			}
			return ids, resp.NextPageToken
		}
		var all []string
		token := ""
		for pages := 0; ; pages++ {
			ids, next := list(&rollcallv1.ListServicesRequest{PageSize: 10, PageToken: token})
			all = append(all, ids...)
			if token = next; token == "" {
				require.Equal(t, 2, pages)
				break
			}
		}
		require.Len(t, all, 25)
		ids, _ := list(&rollcallv1.ListServicesRequest{Kind: "api"})
		require.Equal(t, []string{"s-00", "s-05", "s-10", "s-15", "s-20"}, ids)
		ids, _ = list(&rollcallv1.ListServicesRequest{Ids: []string{"s-07", "absent", "s-05"}, Kind: "relayer"})
		require.Equal(t, []string{"s-07"}, ids)

		// Ids must be paged too, and a repeated id must be returned once.
		var named []string
		some := &rollcallv1.ListServicesRequest{Ids: []string{"s-09", "s-03", "absent", "s-01", "s-03", "s-09"}, PageSize: 2}
		for pages := 1; ; pages++ {
			ids, some.PageToken = list(some)
			named = append(named, ids...)
			if some.PageToken == "" {
				require.Equal(t, 2, pages)
				break
			}
		}
		require.Equal(t, []string{"s-01", "s-03", "s-09"}, named)
	})
}

// replica follows a watch and applies its messages.
type replica struct {
	t      *testing.T
	stream grpc.ServerStreamingClient[rollcallv1.WatchServicesResponse]
	ids    map[string]uint64
	token  string
}

func (r *replica) step() *rollcallv1.WatchServicesResponse {
	resp, err := r.stream.Recv()
	require.NoError(r.t, err)
	for _, rec := range resp.GetSnapshot().GetRecords() {
		r.ids[rec.Service.Id] = rec.Version
	}
	for _, ch := range resp.GetChanges().GetChanges() {
		if before := ch.Before; before != nil {
			require.Equal(r.t, r.ids[before.Service.Id], before.Version, "changes follow one another")
			delete(r.ids, before.Service.Id)
		}
		if after := ch.After; after != nil {
			r.ids[after.Service.Id] = after.Version
		}
	}
	if resp.Token != "" {
		r.token = resp.Token
	}
	return resp
}

func TestWatchServices_SnapshotThenChanges_ResumesOnAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.register("a", "b")
		leader, _ := c.leader()
		watch := func(id, token string) *replica {
			stream, err := c.client(id).WatchServices(t.Context(), &rollcallv1.WatchServicesRequest{Kind: "relayer", ResumeToken: token})
			require.NoError(t, err)
			return &replica{t: t, stream: stream, ids: make(map[string]uint64)}
		}
		r := watch(leader, "")
		require.NotNil(t, r.step().GetSnapshot())
		require.NotNil(t, r.step().GetSnapshotEnd())
		require.Len(t, r.ids, 2)

		other := service("other")
		other.Kind = "api"
		_, err := c.client(leader).RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{
			Writer: operator(), Services: []*rollcallv1.Service{other, service("c")},
		})
		require.NoError(t, err)
		require.Len(t, r.step().GetChanges().Changes, 1, "of another kind, not shown")
		require.NotNil(t, r.step().GetBookmark(), "idle streams get bookmarks")

		// Resume on another node at the first stream's token.
		token := r.token
		_, err = c.client(leader).DeregisterServices(t.Context(), &rollcallv1.DeregisterServicesRequest{Writer: operator(), Ids: []string{"a"}})
		require.NoError(t, err)
		follower := c.follower()
		c.await("the follower has it", func() bool { return c.nodes[follower].Directory().State().Len() == 3 })
		second := watch(follower, token)
		second.ids = r.ids
		second.step()
		require.NotContains(t, second.ids, "a")
		require.Len(t, second.ids, 2)

		for token, code := range map[string]codes.Code{
			"nonsense": codes.InvalidArgument, "another/1": codes.FailedPrecondition,
			strings.Split(token, "/")[0] + "/999999": codes.Unavailable, strings.Split(token, "/")[0] + "/0": codes.OK,
		} {
			stream, err := c.client(leader).WatchServices(t.Context(), &rollcallv1.WatchServicesRequest{ResumeToken: token})
			require.NoError(t, err)
			_, err = stream.Recv()
			require.Equal(t, code, status.Code(err), token)
		}
		c.stop(leader)
		for err = nil; err == nil; { // messages sent earlier arrive first
			_, err = r.stream.Recv()
		}
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	})
}

func TestWatchServices_ReaderStalls_IsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, nil)
		leader, _ := c.leader()
		stream, err := c.client(leader).WatchServices(t.Context(), &rollcallv1.WatchServicesRequest{})
		require.NoError(t, err)
		// About 20 MB of changes, while the reader receives no more than the window.
		for i := range 20 {
			req := &rollcallv1.RegisterServicesRequest{Writer: operator()}
			for j := range 100 {
				s := service(fmt.Sprintf("s-%d", j))
				s.WorkerRef.Labels = labels(40, 200)
				s.WorkerRef.Node = fmt.Sprintf("n%d", i)
				req.Services = append(req.Services, s)
			}
			_, err := c.client(leader).RegisterServices(t.Context(), req)
			require.NoError(t, err)
		}
		pass(time.Minute)
		for {
			if _, err = stream.Recv(); err != nil {
				break
			}
		}
		require.Equal(t, codes.OutOfRange, status.Code(err), "%v", err)
	})
}

// Concurrent writes must share Raft entries, and each must get its own answer.
func TestRegisterServices_ConcurrentWrites_ShareEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		c.net.SetLatency(5 * time.Millisecond)
		leader, _ := c.leader()
		c.register("warm")
		before := c.nodes[leader].Directory().State().Index()
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				resp, err := c.client(leader).RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{
					Writer: gatewayWriter(fmt.Sprintf("g-%d", i), 1, 1), Services: []*rollcallv1.Service{service(fmt.Sprintf("s-%d", i%32))},
				})
				if err != nil {
					require.Equal(t, codes.AlreadyExists, status.Code(err))
					return
				}
				require.EqualValues(t, 1, resp.Registered)
			})
		}
		wg.Wait()
		s := c.nodes[leader].Directory().State()
		require.Equal(t, 33, s.Len())
		require.Less(t, s.Index()-before, uint64(16), "64 writes should need a few entries")
	})
}

// A stalled reader must not retain a state of the directory forever.
func TestTakeSnapshot_ReaderStalls_IsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 1, nil)
		leader, _ := c.leader()
		for i := range 10 {
			var services []*rollcallv1.Service
			for j := range 100 {
				s := service(fmt.Sprintf("s-%d-%d", i, j))
				s.WorkerRef.Labels = labels(5, 200)
				services = append(services, s)
			}
			_, err := c.client(leader).RegisterServices(t.Context(), &rollcallv1.RegisterServicesRequest{Writer: operator(), Services: services})
			require.NoError(t, err)
		}
		require.Greater(t, len(c.takeSnapshot(leader)), 1<<20)

		stream, err := c.admin(leader).TakeSnapshot(t.Context(), &rollcallv1.TakeSnapshotRequest{})
		require.NoError(t, err)
		pass(time.Minute)
		for err == nil {
			_, err = stream.Recv()
		}
		require.Equal(t, codes.OutOfRange, status.Code(err), "%v", err)
	})
}

// A caller of a later version sets fields that this version does not know, in each message of a write. No node may end: an
// entry that a node cannot apply would end it at each start.
func TestWrites_FieldsOfALaterVersion_EndNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(t, 3, nil)
		leader, epoch := c.leader()
		client := c.client(leader)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var later func(m protoreflect.Message)
		later = func(m protoreflect.Message) {
			m.SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1))
			m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
				switch {
				case f.IsMap() || f.Message() == nil:
				case f.IsList():
					for i := range v.List().Len() {
						later(v.List().Get(i).Message())
					}
				default:
					later(v.Message())
				}
				return true
			})
		}
		register := &rollcallv1.RegisterServicesRequest{Writer: operator(), Services: []*rollcallv1.Service{service("a"), service("b")}}
		later(register.ProtoReflect())
		_, err := client.RegisterServices(ctx, register)
		require.NoError(t, err)
		deregister := &rollcallv1.DeregisterServicesRequest{Writer: operator(), Ids: []string{"a"}}
		later(deregister.ProtoReflect())
		_, err = client.DeregisterServices(ctx, deregister)
		require.NoError(t, err)
		for id := range c.nodes {
			c.await("every node applies the writes", func() bool {
				r, err := c.client(id).ListServices(t.Context(), &rollcallv1.ListServicesRequest{Stale: true})
				return err == nil && len(r.Records) == 1 && r.Records[0].GetService().GetId() == "b"
			})
		}
		p, err := client.Ping(t.Context(), &rollcallv1.PingRequest{})
		require.NoError(t, err)
		require.Equal(t, epoch, p.Epoch, "the leader still leads")
	})
}
