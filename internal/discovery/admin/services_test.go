package admin

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func TestServices_RegisterReadAndDeregister(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 1)
		leader, a := c.leader(), c.admin()
		signer := &rollcallv1.Service{Id: "s", Kind: "signer", WorkerRef: &rollcallv1.WorkerRef{Url: "tcp://s:1", Node: "host", Labels: map[string]string{"zone": "a"}}}
		done, err := a.Register(t.Context(), []*rollcallv1.Service{service("a", "http://a"), signer}, false)
		require.NoError(t, err)
		require.Equal(t, Registered{Epoch: leader.Epoch, Index: done.Index, Registered: 2}, done)
		require.NotZero(t, done.Index)
		done, err = a.Register(t.Context(), []*rollcallv1.Service{signer}, false)
		require.NoError(t, err)
		require.EqualValues(t, 1, done.Unchanged)

		for _, stale := range []bool{false, true} {
			d, err := a.Services(t.Context(), Selection{Stale: stale})
			require.NoError(t, err)
			require.Equal(t, &Directory{Cluster: leader.Cluster, Epoch: leader.Epoch, Index: d.Index, Services: []Service{
				{ID: "a", Kind: "relayer", URL: "http://a", Labels: map[string]string{}, Owner: "operator", Version: d.Services[0].Version},
				{ID: "s", Kind: "signer", URL: "tcp://s:1", Node: "host", Labels: map[string]string{"zone": "a"}, Owner: "operator", Version: d.Services[1].Version},
			}}, d)
		}
		d, err := a.Services(t.Context(), Selection{Kind: "signer"})
		require.NoError(t, err)
		require.Len(t, d.Services, 1)
		d, err = a.Services(t.Context(), Selection{IDs: []string{"x", "a", "b"}})
		require.NoError(t, err)
		require.Len(t, d.Services, 1)
		require.Equal(t, []string{"x", "b"}, d.Missing([]string{"x", "a", "b"}))

		// An entry that a gateway owns is taken from it only with force.
		registerAsGateway(t, a, service("g", "http://g"))
		conflict := new(gateway.ConflictError)
		_, err = a.Register(t.Context(), []*rollcallv1.Service{service("g", "http://mine")}, false)
		require.ErrorAs(t, err, &conflict)
		_, err = a.Deregister(t.Context(), []string{"g"}, false)
		require.ErrorAs(t, err, &conflict)
		_, err = a.Register(t.Context(), []*rollcallv1.Service{service("g", "http://mine")}, true)
		require.NoError(t, err)
		registerAsGateway(t, a, service("h", "http://h"))

		gone, err := a.Deregister(t.Context(), []string{"x", "h", "a", "b"}, true)
		require.NoError(t, err)
		require.Equal(t, Deregistered{Epoch: leader.Epoch, Index: gone.Index, Removed: 2, Absent: []string{"b", "x"}}, gone)
		gone, err = a.Deregister(t.Context(), []string{"g"}, false)
		require.NoError(t, err)
		require.Equal(t, []string{}, gone.Absent)

		fleet, err := a.Status(t.Context())
		require.NoError(t, err)
		require.Equal(t, leader.Node, fleet.Leader)
		c.stop("c1")
		began := time.Now()
		_, err = a.Status(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = a.Register(t.Context(), []*rollcallv1.Service{signer}, false)
		require.Error(t, err)
		_, err = a.Deregister(t.Context(), []string{"g"}, false)
		require.Error(t, err)
		_, err = a.Services(t.Context(), Selection{Stale: true})
		require.Error(t, err)
		require.Equal(t, 4*timeout, time.Since(began))
	})
}

// Pages are fetched to the last one. Cluster, epoch and index are those of the first, because the later ones may be of a
// later state.
func TestServices_Pages_AreJoined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		record := func(id string) *rollcallv1.ServiceRecord {
			return &rollcallv1.ServiceRecord{Service: service(id, "http://"+id)}
		}
		f := &fake{list: func(req *rollcallv1.ListServicesRequest) *rollcallv1.ListServicesResponse {
			if req.PageToken == "" {
				return &rollcallv1.ListServicesResponse{Cluster: "c", Epoch: 1, Index: 5, Records: []*rollcallv1.ServiceRecord{record("a")}, NextPageToken: "a"}
			}
			return &rollcallv1.ListServicesResponse{Cluster: "c", Epoch: 2, Index: 6, Records: []*rollcallv1.ServiceRecord{record("b")}}
		}}
		d, err := f.admin(t).Services(t.Context(), Selection{})
		require.NoError(t, err)
		require.Equal(t, []any{"c", uint64(1), uint64(5), 2}, []any{d.Cluster, d.Epoch, d.Index, len(d.Services)})
	})
}

func TestWatch_Changes_AreYielded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 1)
		c.leader()
		a := c.admin()
		register := func(id, url string) {
			_, err := a.Register(t.Context(), []*rollcallv1.Service{service(id, url)}, false)
			require.NoError(t, err)
		}
		register("a", "http://1")
		register("b", "http://2")
		ctx, interrupt := context.WithCancel(t.Context())
		next, stop := iter.Pull2(a.Watch(ctx, "relayer", ""))
		defer stop()
		event := func() Event {
			t.Helper()
			for {
				e, err, ok := next()
				require.NoError(t, err)
				require.True(t, ok)
				if e.Event != "token" {
					return e
				}
			}
		}
		first, second, ready := event(), event(), event()
		require.Equal(t, []string{"service", "service", "ready"}, []string{first.Event, second.Event, ready.Event})
		require.Equal(t, []string{"a", "b"}, []string{first.Service.ID, second.Service.ID})
		require.Empty(t, first.Token, "the snapshot cannot be resumed inside")
		require.NotEmpty(t, ready.Token)

		// Far beyond the timeout, which limits only the search.
		pass(10 * timeout)
		register("a", "http://3")
		changed := event()
		require.Equal(t, []string{"changed", "http://1", "http://3"}, []string{changed.Event, changed.Before.URL, changed.Service.URL})
		_, err := a.Register(t.Context(), []*rollcallv1.Service{service("x", "http://x"), service("y", "http://y")}, false)
		require.NoError(t, err)
		x, y := event(), event()
		require.Equal(t, []string{"added", "added"}, []string{x.Event, y.Event})
		require.Nil(t, x.Before)
		require.Empty(t, x.Token, "one write")
		require.NotEmpty(t, y.Token)
		_, err = a.Deregister(t.Context(), []string{"x"}, false)
		require.NoError(t, err)
		removed := event()
		require.Equal(t, []string{"removed", "x"}, []string{removed.Event, removed.Before.ID})
		require.Nil(t, removed.Service)

		for e, err := range a.Watch(t.Context(), "", changed.Token) {
			require.NoError(t, err)
			require.Equal(t, []string{"added", "x"}, []string{e.Event, e.Service.ID}, "after the token, without the services before")
			break
		}
		for _, err := range a.Watch(t.Context(), "", "elsewhere/1") {
			require.Error(t, err)
		}

		interrupt()
		for {
			e, err, ok := next()
			require.NoError(t, err, "an interrupted watch ends without an error")
			if !ok {
				break
			}
			require.Equal(t, "token", e.Event)
		}
		c.stop("c1")
		ended := 0
		for _, err := range c.admin().Watch(t.Context(), "", "") {
			require.ErrorIs(t, err, gateway.ErrNoLeader)
			ended++
		}
		require.Equal(t, 1, ended)
	})
}
