package mirrortest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
)

// Backend is a store with the access that readers and other clients have.
type Backend interface {
	Store() mirror.Store
	Keys() mirror.Keys
	Members(key string) []string // sorted
	Hash(key string) map[string]string
	SAdd(key string, ids ...string)
	SRem(key string, ids ...string)
	HSet(key string, pairs ...string)
	Set(key, value string) // makes the key a string
	// Flush empties the store.
	Flush()
	// Events returns the events published so far.
	Events() []Event
}

// OnRedis returns a Backend on a server. Backends with different prefixes may share a server.
func OnRedis(t *testing.T, client redis.UniversalClient, prefix string) Backend {
	t.Helper()
	r := &onRedis{
		t: t, client: client, store: mirror.NewStore(client, prefix), keys: mirror.Keys{Prefix: prefix},
		marks: make(chan struct{}, 1),
	}
	sub := client.Subscribe(t.Context(), r.keys.Events())
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	messages := sub.Channel(redis.WithChannelSize(100_000))
	var wg sync.WaitGroup
	wg.Go(func() {
		for msg := range messages {
			e, err := parseEvent(msg.Payload)
			if e.Type == "mark" {
				r.marks <- struct{}{}
				continue
			}
			r.mu.Lock()
			if err != nil {
				r.err = fmt.Errorf("event %q: %w", msg.Payload, err)
			}
			r.events = append(r.events, e)
			r.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		_ = sub.Close()
		wg.Wait()
	})
	return r
}

type onRedis struct {
	t      *testing.T
	client redis.UniversalClient
	store  mirror.Store
	keys   mirror.Keys

	marks chan struct{}

	mu     sync.Mutex
	events []Event
	err    error
}

func (r *onRedis) ctx() context.Context { return context.WithoutCancel(r.t.Context()) }

func (r *onRedis) Store() mirror.Store { return r.store }

func (r *onRedis) Keys() mirror.Keys { return r.keys }

func (r *onRedis) Members(key string) []string {
	r.t.Helper()
	ids, err := r.client.SMembers(r.ctx(), key).Result()
	require.NoError(r.t, err)
	slices.Sort(ids)
	return ids
}

func (r *onRedis) Hash(key string) map[string]string {
	r.t.Helper()
	h, err := r.client.HGetAll(r.ctx(), key).Result()
	require.NoError(r.t, err)
	return h
}

func (r *onRedis) SAdd(key string, ids ...string) {
	r.t.Helper()
	for some := range slices.Chunk(ids, 1000) {
		require.NoError(r.t, r.client.SAdd(r.ctx(), key, some).Err())
	}
}

func (r *onRedis) SRem(key string, ids ...string) {
	r.t.Helper()
	require.NoError(r.t, r.client.SRem(r.ctx(), key, ids).Err())
}

func (r *onRedis) HSet(key string, pairs ...string) {
	r.t.Helper()
	require.NoError(r.t, r.client.HSet(r.ctx(), key, pairs).Err())
}

func (r *onRedis) Set(key, value string) {
	r.t.Helper()
	require.NoError(r.t, r.client.Set(r.ctx(), key, value, 0).Err())
}

func (r *onRedis) Flush() {
	r.t.Helper()
	found, err := r.client.Keys(r.ctx(), r.keys.Prefix+"*").Result()
	require.NoError(r.t, err)
	if len(found) > 0 {
		require.NoError(r.t, r.client.Del(r.ctx(), found...).Err())
	}
}

// Events publishes a marker and waits for it, so that all earlier events have arrived.
func (r *onRedis) Events() []Event {
	r.t.Helper()
	require.NoError(r.t, r.client.Publish(r.ctx(), r.keys.Events(), `{"type":"mark"}`).Err())
	select {
	case <-r.marks:
	case <-time.After(time.Minute):
		r.t.Fatal("a published event did not arrive")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	require.NoError(r.t, r.err)
	return slices.Clone(r.events)
}

// Run checks that a store behaves as the Writer requires. open returns an empty store.
func Run(t *testing.T, open func(t *testing.T) Backend) {
	for name, test := range map[string]func(*testing.T, fixture){
		"AnEmptyStoreReadsAsZero":           testEmpty,
		"AClaimOpensAnEpoch":                testClaim,
		"OlderTokensAreRefused":             testOlder,
		"AnEqualTokenChangesNothing":        testDuplicate,
		"AWriteNeedsItsBase":                testBase,
		"ALateWriteIsRefused":               testExpired,
		"AForeignClusterIsRefused":          testForeign,
		"SetsChangeAsAsked":                 testSets,
		"KeysOfTheWrongTypeAreReplaced":     testWrongTypes,
		"HashesAreWrittenAndDeleted":        testStatus,
		"AnUncheckedServiceInheritsItsHash": testInherit,
		"TenThousandAtOnce":                 testMany,
		"IDsMayBeAnyBytes":                  testBytes,
		"UnreadableMetaCountsAsOld":         testUnreadable,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t)
			test(t, fixture{b, b.Store(), b.Keys()})
		})
	}
}

type fixture struct {
	Backend
	store mirror.Store
	keys  mirror.Keys
}

// at returns a write with epoch and seq, by the epoch's own leader, that only the token check can refuse.
func (f fixture) at(t *testing.T, op mirror.Op, epoch, seq uint64) mirror.Write {
	t.Helper()
	view, err := f.store.Read(t.Context(), nil)
	require.NoError(t, err)
	return mirror.Write{
		Op: op, Cluster: "c", Leader: fmt.Sprintf("node-%d", epoch), Token: mirror.Token{Epoch: epoch, Seq: seq},
		Base: view.Meta.Token, NotAfter: view.Now.Add(time.Minute), Interval: 10 * time.Second,
	}
}

func (f fixture) write(t *testing.T, w mirror.Write, want mirror.Outcome) mirror.Reply {
	t.Helper()
	before := f.meta(t)
	r, err := f.store.Write(t.Context(), w)
	require.NoError(t, err)
	require.Equal(t, want, r.Outcome)
	require.Equal(t, before, r.Held)
	if want != mirror.Applied {
		require.Equal(t, before, f.meta(t), "a refused write left meta alone")
	}
	return r
}

func (f fixture) meta(t *testing.T) mirror.Meta {
	t.Helper()
	view, err := f.store.Read(t.Context(), nil)
	require.NoError(t, err)
	return view.Meta
}

// listed reads the sets through the store, and checks that readers see the same.
func (f fixture) listed(t *testing.T, kinds ...string) map[string][]string {
	t.Helper()
	view, err := f.store.Read(t.Context(), kinds)
	require.NoError(t, err)
	require.Empty(t, view.Wrong)
	for kind, ids := range view.Active {
		slices.Sort(ids)
		require.ElementsMatch(t, f.Members(f.keys.Active(kind)), ids)
	}
	return view.Active
}

func ids(names ...string) []mirror.Member {
	var out []mirror.Member
	for _, n := range names {
		out = append(out, mirror.Member{ID: n, URL: "http://" + n, Reason: "because"})
	}
	return out
}

func testEmpty(t *testing.T, f fixture) {
	view, err := f.store.Read(t.Context(), []string{"relayer", "worker"})
	require.NoError(t, err)
	require.Zero(t, view.Meta)
	require.Empty(t, view.Active["relayer"])
	require.Empty(t, view.Services)
	require.Empty(t, view.Wrong)
	require.WithinDuration(t, time.Now(), view.Now, time.Minute)
}

func testClaim(t *testing.T, f fixture) {
	w := f.at(t, mirror.OpClaim, 7, 0)
	w.Base = mirror.Token{Epoch: 3, Seq: 99} // a claim needs none
	r := f.write(t, w, mirror.Applied)
	m := f.meta(t)
	require.Equal(t, mirror.Meta{
		Cluster: "c", Token: w.Token, Leader: "node-7", Interval: 10 * time.Second, UpdatedAt: m.UpdatedAt,
	}, m)
	require.Equal(t, r.Now.Truncate(time.Millisecond).UTC(), m.UpdatedAt.UTC())
	raw := f.Hash(f.keys.Meta())
	require.Equal(t, []string{"cluster", "epoch", "interval", "leader", "seq", "updated_at"}, slices.Sorted(maps.Keys(raw)))
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`, raw["updated_at"])
	require.Equal(t, "10000", raw["interval"])
	require.Equal(t, []Event{{Type: "leader", ID: "node-7", Epoch: 7, At: raw["updated_at"]}}, f.Events())

	// A claim must keep the sets that it does not name.
	w = f.at(t, mirror.OpChange, 7, 1)
	w.Kinds = []string{"relayer", "worker"}
	w.Sets = []mirror.SetChange{{Kind: "worker", Add: ids("w")}}
	f.write(t, w, mirror.Applied)
	f.write(t, f.at(t, mirror.OpClaim, 8, 0), mirror.Applied)
	require.Equal(t, []string{"relayer", "worker"}, f.meta(t).Kinds)
	require.Equal(t, []string{"w"}, f.listed(t, "worker")["worker"])
}

func testOlder(t *testing.T, f fixture) {
	f.write(t, f.at(t, mirror.OpClaim, 5, 10), mirror.Applied)
	for _, op := range []mirror.Op{mirror.OpClaim, mirror.OpChange, mirror.OpStatus, mirror.OpHeartbeat} {
		for _, tok := range []mirror.Token{{Epoch: 4, Seq: 11}, {Epoch: 5, Seq: 9}, {Epoch: 1, Seq: 0}} {
			w := f.at(t, op, tok.Epoch, tok.Seq)
			w.Sets = []mirror.SetChange{{Kind: "relayer", Add: ids("a")}}
			f.write(t, w, mirror.Older)
		}
		same := f.at(t, op, 5, 11)
		same.Leader = "another"
		f.write(t, same, mirror.Older)
		same.Token.Seq = 10
		f.write(t, same, mirror.Older)
	}
	require.Empty(t, f.listed(t, "relayer")["relayer"])
}

func testDuplicate(t *testing.T, f fixture) {
	f.write(t, f.at(t, mirror.OpClaim, 5, 0), mirror.Applied)
	w := f.at(t, mirror.OpChange, 5, 1)
	w.Sets = []mirror.SetChange{{Kind: "relayer", Add: ids("a")}}
	f.write(t, w, mirror.Applied)
	w.Sets = []mirror.SetChange{{Kind: "relayer", Add: ids("b"), Remove: ids("a")}}
	f.write(t, w, mirror.Duplicate)
	w.NotAfter = time.Unix(0, 0)
	f.write(t, w, mirror.Duplicate) // a repeated write is a duplicate
	require.Equal(t, []string{"a"}, f.listed(t, "relayer")["relayer"])
	require.Len(t, f.Events(), 2)
}

func testBase(t *testing.T, f fixture) {
	f.write(t, f.at(t, mirror.OpClaim, 5, 0), mirror.Applied)
	for _, base := range []mirror.Token{{}, {Epoch: 5, Seq: 1}, {Epoch: 4, Seq: 0}} {
		w := f.at(t, mirror.OpHeartbeat, 5, 2)
		w.Base = base
		f.write(t, w, mirror.Mismatch)
	}
	f.write(t, f.at(t, mirror.OpHeartbeat, 5, 2), mirror.Applied)
	stale := f.at(t, mirror.OpChange, 5, 3)
	f.Flush()
	f.write(t, stale, mirror.Mismatch)
	f.write(t, f.at(t, mirror.OpChange, 5, 4), mirror.Applied) // based on the empty store
	require.Equal(t, mirror.Token{Epoch: 5, Seq: 4}, f.meta(t).Token)
}

func testExpired(t *testing.T, f fixture) {
	w := f.at(t, mirror.OpClaim, 5, 0)
	w.NotAfter = w.NotAfter.Add(-time.Minute - time.Second)
	r := f.write(t, w, mirror.Expired)
	require.True(t, r.Now.After(w.NotAfter))
	require.Zero(t, f.meta(t))
	require.Empty(t, f.Events())
}

func testForeign(t *testing.T, f fixture) {
	f.write(t, f.at(t, mirror.OpClaim, 5, 0), mirror.Applied)
	w := f.at(t, mirror.OpClaim, 9, 0)
	w.Cluster = "d"
	r := f.write(t, w, mirror.Foreign)
	require.Equal(t, "c", r.Held.Cluster)
	require.EqualValues(t, 5, r.Held.Token.Epoch)
}

func testSets(t *testing.T, f fixture) {
	f.write(t, f.at(t, mirror.OpClaim, 5, 0), mirror.Applied)
	w := f.at(t, mirror.OpChange, 5, 1)
	w.Kinds = []string{"relayer", "worker"}
	w.Sets = []mirror.SetChange{{Kind: "relayer", Add: ids("a", "b")}, {Kind: "worker", Add: ids("w")}}
	require.Equal(t, []int{2, 1}, f.write(t, w, mirror.Applied).Sizes)
	at := f.Hash(f.keys.Meta())["updated_at"]
	w = f.at(t, mirror.OpChange, 5, 2)
	w.Kinds = []string{"relayer", "worker"}
	w.Sets = []mirror.SetChange{{Kind: "relayer", Add: ids("c"), Remove: ids("a")}, {Kind: "worker"}}
	require.Equal(t, []int{2, 1}, f.write(t, w, mirror.Applied).Sizes)
	require.Equal(t, map[string][]string{"relayer": {"b", "c"}, "worker": {"w"}}, f.listed(t, "relayer", "worker"))
	require.Equal(t, []string{"relayer", "worker"}, f.meta(t).Kinds)

	events := f.Events()
	require.Equal(t, Event{"added", "a", "http://a", "relayer", 5, 1, at, "because"}, events[1])
	require.Equal(t, "worker", events[3].Kind)
	require.Equal(t, "relayer", events[5].Kind, "of one that was removed")
	var short []string
	for _, e := range events {
		short = append(short, fmt.Sprintf("%s %s %d", e.Type, e.ID, e.Seq))
	}
	require.Equal(t, []string{"leader node-5 0", "added a 1", "added b 1", "added w 1", "added c 2", "removed a 2"}, short)

	// Removing the last member must delete the key.
	w = f.at(t, mirror.OpChange, 5, 3)
	w.Sets = []mirror.SetChange{{Kind: "relayer", Remove: ids("b", "c")}}
	require.Equal(t, []int{0}, f.write(t, w, mirror.Applied).Sizes)
	require.Equal(t, []string{"relayer", "worker"}, f.meta(t).Kinds, "naming no kinds keeps them")
	require.Empty(t, f.listed(t, "relayer")["relayer"])
}

func testWrongTypes(t *testing.T, f fixture) {
	for _, key := range []string{f.keys.Meta(), f.keys.Services(), f.keys.Active("relayer"), f.keys.Active("worker"), f.keys.Status("a")} {
		f.Set(key, "oops")
	}
	view, err := f.store.Read(t.Context(), []string{"relayer", "worker"})
	require.NoError(t, err)
	require.Zero(t, view.Meta)
	require.Equal(t, []string{"relayer", "worker"}, view.Wrong)
	require.Empty(t, view.Active["relayer"])
	require.Empty(t, view.Services)

	f.write(t, f.at(t, mirror.OpClaim, 5, 0), mirror.Applied)
	w := f.at(t, mirror.OpHeartbeat, 5, 1)
	w.Sets = []mirror.SetChange{{Kind: "relayer"}, {Kind: "worker", Remove: ids("x")}}
	require.Equal(t, []int{-1, -1}, f.write(t, w, mirror.Applied).Sizes)
	w = f.at(t, mirror.OpChange, 5, 2)
	w.Sets = []mirror.SetChange{{Kind: "relayer", Add: ids("a")}, {Kind: "worker", Replace: true}}
	w.Status = []mirror.StatusChange{{ID: "a", Fields: hash("a", "relayer", "http://a", "healthy")}}
	require.Equal(t, []int{1, 0}, f.write(t, w, mirror.Applied).Sizes)
	require.Equal(t, map[string][]string{"relayer": {"a"}, "worker": {}}, f.listed(t, "relayer", "worker"))
	require.Equal(t, "healthy", f.Hash(f.keys.Status("a"))["status"])
	require.Equal(t, []string{"a"}, f.Members(f.keys.Services()))
	f.Set(f.keys.Status("a"), "oops")
	w = f.at(t, mirror.OpStatus, 5, 3)
	w.Status = []mirror.StatusChange{{ID: "a", Fields: hash("a", "relayer", "http://a", "unknown"), Inherit: true}}
	f.write(t, w, mirror.Applied)
	require.Equal(t, "unknown", f.Hash(f.keys.Status("a"))["status"])
}

func hash(id, kind, url, status string) []string {
	return []string{"id", id, "kind", kind, "url", url, "status", status}
}

func testStatus(t *testing.T, f fixture) {
	f.write(t, f.at(t, mirror.OpClaim, 5, 0), mirror.Applied)
	w := f.at(t, mirror.OpStatus, 5, 1)
	w.Status = []mirror.StatusChange{
		{ID: "oz-relayer-3", Fields: hash("oz-relayer-3", "relayer", "http://3", "healthy")},
		{ID: "edge", Fields: append(hash("edge", "worker", "tcp://e:1", "unhealthy"), "reason", "a \"quoted\" – reason")},
		{ID: "never-there"},
	}
	f.write(t, w, mirror.Applied)
	require.Equal(t, map[string]string{"id": "oz-relayer-3", "kind": "relayer", "url": "http://3", "status": "healthy"},
		f.Hash(f.keys.Prefix+"relayer:status:3"))
	require.Equal(t, "a \"quoted\" – reason", f.Hash(f.keys.Prefix + "relayer:status:svc:edge")["reason"])
	require.Equal(t, []string{"edge", "oz-relayer-3"}, f.Members(f.keys.Services()))
	view, err := f.store.Read(t.Context(), []string{"relayer"})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"edge", "oz-relayer-3"}, view.Services)

	w = f.at(t, mirror.OpStatus, 5, 2)
	w.Status = []mirror.StatusChange{{ID: "edge"}}
	f.write(t, w, mirror.Applied)
	require.Empty(t, f.Hash(f.keys.Status("edge")))
	require.Equal(t, []string{"oz-relayer-3"}, f.Members(f.keys.Services()))
}

func testInherit(t *testing.T, f fixture) {
	f.write(t, f.at(t, mirror.OpClaim, 5, 0), mirror.Applied)
	seq := uint64(0)
	put := func(fields []string, inherit bool) string {
		seq++
		w := f.at(t, mirror.OpStatus, 5, seq)
		w.Status = []mirror.StatusChange{{ID: "a", Fields: fields, Inherit: inherit}}
		f.write(t, w, mirror.Applied)
		return f.Hash(f.keys.Status("a"))["status"]
	}
	require.Equal(t, "unknown", put(hash("a", "k", "u", "unknown"), true), "nothing to inherit")
	require.Equal(t, "healthy", put(hash("a", "k", "u", "healthy"), false))
	require.Equal(t, "healthy", put(hash("a", "k", "u", "unknown"), true))
	require.Equal(t, "unknown", put(hash("a", "k", "other", "unknown"), true))
	require.Equal(t, "healthy", put(hash("a", "k", "other", "healthy"), false))
	require.Equal(t, "unknown", put(hash("a", "l", "other", "unknown"), true))
	f.SRem(f.keys.Services(), "a")
	require.Equal(t, "unknown", put(hash("a", "l", "other", "healthy"), true))
	require.Equal(t, []string{"a"}, f.Members(f.keys.Services()))
}

func testMany(t *testing.T, f fixture) {
	names := make([]string, 10_000)
	for i := range names {
		names[i] = fmt.Sprintf("service-%05d", i)
	}
	f.write(t, f.at(t, mirror.OpClaim, 5, 0), mirror.Applied)
	w := f.at(t, mirror.OpChange, 5, 1)
	w.Sets = []mirror.SetChange{{Kind: "relayer", Add: ids(names...)}}
	require.Equal(t, []int{10_000}, f.write(t, w, mirror.Applied).Sizes)
	require.Equal(t, names, f.Members(f.keys.Active("relayer")))
	w = f.at(t, mirror.OpChange, 5, 2)
	w.Sets = []mirror.SetChange{{Kind: "relayer", Remove: ids(names[1:]...)}}
	require.Equal(t, []int{1}, f.write(t, w, mirror.Applied).Sizes)
	require.Len(t, f.Events(), 1+10_000+9_999)
}

func testBytes(t *testing.T, f fixture) {
	odd := []string{"a b", "quote\"back\\slash", "\x00\xff\xfe", "ünïcode", "{tag}", ""}
	f.SAdd(f.keys.Active("relayer"), odd...)
	f.write(t, f.at(t, mirror.OpClaim, 5, 0), mirror.Applied)
	view, err := f.store.Read(t.Context(), []string{"relayer"})
	require.NoError(t, err)
	require.ElementsMatch(t, odd, view.Active["relayer"])
	w := f.at(t, mirror.OpChange, 5, 1)
	w.Sets = []mirror.SetChange{{Kind: "relayer", Remove: ids(view.Active["relayer"]...)}}
	require.Equal(t, []int{0}, f.write(t, w, mirror.Applied).Sizes)
	require.Len(t, f.Events(), 1+len(odd))
}

func testUnreadable(t *testing.T, f fixture) {
	for _, n := range []string{"", "many", "-4", "inf", "nan", "1e99"} {
		f.HSet(f.keys.Meta(), "cluster", "c", "epoch", n, "seq", n, "leader", "x")
		require.Equal(t, mirror.Token{}, f.meta(t).Token, n)
		f.write(t, f.at(t, mirror.OpHeartbeat, 5, 1), mirror.Applied)
		require.Equal(t, mirror.Token{Epoch: 5, Seq: 1}, f.meta(t).Token)
	}
}
