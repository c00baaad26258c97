package fsm

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

var (
	edge1 = gateway("edge-1")
	edge2 = gateway("edge-2")
)

func TestApply_Owners_DecideWhichWritesAreRefused(t *testing.T) {
	t.Parallel()
	register := func(o Owner, mutate func(*rollcallv1.RegisterOperation)) *rollcallv1.Operation {
		op := &rollcallv1.RegisterOperation{Fence: writer(o, 1, 1, 1), Services: services("r-0", "r-1")}
		if mutate != nil {
			mutate(op)
		}
		return opRegister(op)
	}
	held := func(o Owner) *ConflictError {
		return &ConflictError{Conflicts: []Conflict{{Index: 1, ID: "r-1", Owner: o}}}
	}
	taken := Answer{Epoch: 1, Index: 3, Registered: 2}

	for _, tt := range []struct {
		name string
		// r-1 belongs to held before op.
		held   Owner
		op     *rollcallv1.Operation
		answer Answer
		err    error
		after  []string
	}{
		{
			name: "gateway beats static", held: Static, op: register(edge1, nil),
			answer: taken, after: []string{"r-0=gateway/edge-1", "r-1=gateway/edge-1"},
		},
		{
			name: "operator beats static", held: Static, op: register(Operator, nil),
			answer: taken, after: []string{"r-0=operator", "r-1=operator"},
		},
		{
			name: "static yields to a gateway", held: edge1, op: register(Static, nil),
			answer: Answer{Epoch: 1, Index: 3, Registered: 1, Yielded: 1}, after: []string{"r-0=static", "r-1=gateway/edge-1"},
		},
		{
			name: "static yields to an operator", held: Operator, op: register(Static, nil),
			answer: Answer{Epoch: 1, Index: 3, Registered: 1, Yielded: 1}, after: []string{"r-0=static", "r-1=operator"},
		},
		{
			name: "static yields even with force", held: edge1,
			op:     register(Static, func(op *rollcallv1.RegisterOperation) { op.Force = true }),
			answer: Answer{Epoch: 1, Index: 3, Registered: 1, Yielded: 1}, after: []string{"r-0=static", "r-1=gateway/edge-1"},
		},
		{
			name: "a live gateway's is refused to another", held: edge2, op: register(edge1, nil),
			err: held(edge2), after: []string{"r-1=gateway/edge-2"},
		},
		{
			name: "a live gateway's is refused to an operator", held: edge2, op: register(Operator, nil),
			err: held(edge2), after: []string{"r-1=gateway/edge-2"},
		},
		{
			name: "an operator's is refused to a gateway", held: Operator, op: register(edge1, nil),
			err: held(Operator), after: []string{"r-1=operator"},
		},
		{
			name: "force takes over", held: edge2,
			op:     register(Operator, func(op *rollcallv1.RegisterOperation) { op.Force = true }),
			answer: taken, after: []string{"r-0=operator", "r-1=operator"},
		},
		{
			name: "a gone owner's is free", held: edge2,
			op: register(edge1, func(op *rollcallv1.RegisterOperation) {
				op.Gone = []*rollcallv1.Owner{gateway("edge-3").Proto(), edge2.Proto()}
			}),
			answer: taken, after: []string{"r-0=gateway/edge-1", "r-1=gateway/edge-1"},
		},
		{
			name: "another's being gone frees nothing", held: edge2,
			op: register(edge1, func(op *rollcallv1.RegisterOperation) {
				op.Gone = []*rollcallv1.Owner{gateway("edge-3").Proto()}
			}),
			err: held(edge2), after: []string{"r-1=gateway/edge-2"},
		},
		{
			name: "one's own is unchanged", held: edge1,
			op: opRegister(&rollcallv1.RegisterOperation{
				Fence: writer(edge1, 2, 1, 1), Services: services("r-0", "r-1"),
			}),
			answer: Answer{Epoch: 1, Index: 3, Registered: 1, Unchanged: 1}, after: []string{"r-0=gateway/edge-1", "r-1=gateway/edge-1"},
		},
		{
			name: "deregister one's own", held: edge1,
			op:     opDeregister(&rollcallv1.DeregisterOperation{Fence: writer(edge1, 1, 2, 1), Ids: []string{"r-1"}}),
			answer: Answer{Epoch: 1, Index: 3, Removed: 1},
		},
		{
			name: "deregister another's", held: edge2,
			op:    opDeregister(&rollcallv1.DeregisterOperation{Fence: writer(edge1, 1, 1, 1), Ids: []string{"none", "r-1"}}),
			err:   &ConflictError{Deregister: true, Conflicts: []Conflict{{Index: 1, ID: "r-1", Owner: edge2}}},
			after: []string{"r-1=gateway/edge-2"},
		},
		{
			name: "deregister a static one", held: Static,
			op:    opDeregister(&rollcallv1.DeregisterOperation{Fence: writer(edge1, 1, 1, 1), Ids: []string{"r-1"}}),
			err:   &ConflictError{Deregister: true, Conflicts: []Conflict{{Index: 0, ID: "r-1", Owner: Static}}},
			after: []string{"r-1=static"},
		},
		{
			name: "deregister by force", held: edge2,
			op: opDeregister(&rollcallv1.DeregisterOperation{
				Fence: writer(Operator, 0, 0, 1), Ids: []string{"r-1"}, Force: true,
			}),
			answer: Answer{Epoch: 1, Index: 3, Removed: 1},
		},
		{
			name: "deregister what is not there", held: edge1,
			op: opDeregister(&rollcallv1.DeregisterOperation{
				Fence: writer(edge1, 1, 2, 1), Ids: []string{"none", "r-1", "r-1", ""},
			}),
			answer: Answer{Epoch: 1, Index: 3, Removed: 1},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newReplica(t)
			require.NoError(t, r.register(tt.held, 1, "r-1").Err)
			before := r.State()

			if tt.err != nil {
				tt.answer = Answer{Epoch: 1, Index: 3}
			}

			got := r.do(tt.op)[0]
			require.Equal(t, Result{Answer: tt.answer, Err: tt.err}, got)
			require.Equal(t, tt.after, r.owners())
			if tt.err != nil {
				require.Same(t, before.entries, r.State().entries, "a refusal changes nothing")
			}
		})
	}
}

// A conflict in a batch's last service must reject the first one too, and its full set must remove nothing.
func TestRegister_Conflict_ChangesNothing(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	r.register(edge1, 1, "a")
	r.register(edge2, 1, "z")
	_, feed := r.Watch()

	got := r.do(opRegister(&rollcallv1.RegisterOperation{
		Fence: writer(edge1, 1, 2, 1), Services: services("b", "c", "z"), FullSet: true,
	}))[0]
	require.Equal(t, &ConflictError{Conflicts: []Conflict{{Index: 2, ID: "z", Owner: edge2}}}, got.Err)
	require.Equal(t, "z is owned by gateway/edge-2", got.Err.Error())
	require.Equal(t, []string{"a=gateway/edge-1", "z=gateway/edge-2"}, r.owners())
	requireIdle(t, feed)
}

func TestRegister_SeveralConflicts_NamesAll(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	r.register(edge2, 1, "x", "y")
	got := r.register(edge1, 1, "x", "w", "y")
	require.Equal(t, &ConflictError{Conflicts: []Conflict{{0, "x", edge2}, {2, "y", edge2}}}, got.Err)
	require.Equal(t, "x is owned by gateway/edge-2, and 1 more are not the writer's", got.Err.Error())
}

func TestApply_Fences_DecideWhichWritesApply(t *testing.T) {
	t.Parallel()
	// Before: edge-1 has written r-1 as incarnation 5, seq 7, in epoch 2, at index 3.
	first := Answer{Epoch: 2, Index: 3, Registered: 1}
	superseded := &SupersededError{Owner: edge1, Incarnation: 5, Seq: 7}
	for _, tt := range []struct {
		name  string
		fence *rollcallv1.WriteFence
		want  Result // empty: the write is applied
	}{
		{"next seq", writer(edge1, 5, 8, 2), Result{}},
		{"seq with a gap", writer(edge1, 5, 100, 2), Result{}},
		{"same seq", writer(edge1, 5, 7, 2), Result{Answer: first}},
		{"lower seq", writer(edge1, 5, 6, 2), Result{Err: superseded}},
		{"newer incarnation, lower seq", writer(edge1, 6, 1, 2), Result{}},
		{"newer incarnation, same seq", writer(edge1, 6, 7, 2), Result{}},
		{"older incarnation, higher seq", writer(edge1, 4, 9, 2), Result{Err: superseded}},
		{"older incarnation, same seq", writer(edge1, 4, 7, 2), Result{Err: superseded}},
		{"lower epoch", writer(edge1, 5, 8, 1), Result{Err: &StaleEpochError{Epoch: 2}}},
		{"lower epoch, same seq", writer(edge1, 5, 7, 1), Result{Err: &StaleEpochError{Epoch: 2}}},
		{"higher epoch", writer(edge1, 5, 8, 3), Result{Err: &StaleEpochError{Epoch: 2}}},
		{"another gateway", writer(edge2, 1, 1, 2), Result{}},
		{"operator, not fenced", writer(Operator, 0, 0, 2), Result{}},
		{"operator, not fenced, lower epoch", writer(Operator, 0, 0, 1), Result{Err: &StaleEpochError{Epoch: 2}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			setup := func(t *testing.T) *replica {
				r := newReplica(t)
				r.do(opEstablish("n-2", 0))
				r.do(opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge1, 5, 7, 2), Services: services("r-1")}))
				return r
			}
			t.Run("register", func(t *testing.T) {
				r := setup(t)
				before := r.State()
				got := r.do(opRegister(&rollcallv1.RegisterOperation{Fence: tt.fence, Services: services("r-2")}))[0]
				if tt.want == (Result{}) {
					require.Equal(t, Result{Answer: Answer{Epoch: 2, Index: 4, Registered: 1}}, got)
					return
				}
				require.Equal(t, tt.want, got)
				require.Same(t, before.entries, r.State().entries)
				require.Same(t, before.owners, r.State().owners, "a write refused for its fence leaves no trace")
			})
			t.Run("deregister", func(t *testing.T) {
				r := setup(t)
				before := r.State()
				got := r.do(opDeregister(&rollcallv1.DeregisterOperation{Fence: tt.fence, Ids: []string{"r-2"}}))[0]
				if tt.want == (Result{}) {
					require.Equal(t, Result{Answer: Answer{Epoch: 2, Index: 4}}, got)
					return
				}
				require.Equal(t, tt.want, got)
				require.Same(t, before.owners, r.State().owners)
			})
		})
	}
}

// A repeated write must get the stored answer, also a refusal, whatever was written since. A late write must not undo
// later writes.
func TestApply_RepeatedWrite_GetsTheStoredAnswer(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	r.register(edge2, 1, "b")
	refused := r.register(edge1, 1, "a", "b")
	require.ErrorContains(t, refused.Err, "b is owned by gateway/edge-2")
	r.do(opDeregister(&rollcallv1.DeregisterOperation{Fence: writer(edge2, 1, 2, 1), Ids: []string{"b"}}))
	require.Equal(t, refused, r.register(edge1, 1, "a", "b"), "also when it would no longer be refused")
	require.Empty(t, r.owners())

	done := r.register(edge1, 2, "a", "b")
	require.Equal(t, Answer{Epoch: 1, Index: 6, Registered: 2}, done.Answer)
	removed := r.do(opDeregister(&rollcallv1.DeregisterOperation{Fence: writer(edge1, 1, 3, 1), Ids: []string{"a"}}))[0]
	require.Equal(t, 1, removed.Removed)

	late := r.register(edge1, 2, "a", "b")
	require.Equal(t, &SupersededError{Owner: edge1, Incarnation: 1, Seq: 3}, late.Err)
	require.Equal(t, []string{"b=gateway/edge-1"}, r.owners())
	require.Equal(t, removed, r.do(opDeregister(&rollcallv1.DeregisterOperation{Fence: writer(edge1, 1, 3, 1), Ids: []string{"b"}}))[0],
		"the seq counts, not what stands in the repetition")

	// The next epoch must give the same answer.
	r.do(opEstablish("n-2", 0))
	require.Equal(t, removed, r.do(opDeregister(&rollcallv1.DeregisterOperation{Fence: writer(edge1, 1, 3, 2), Ids: []string{"a"}}))[0])
}

func TestApply_UnfencedWrite_KeepsTheFence(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	fenced := r.do(opRegister(&rollcallv1.RegisterOperation{Fence: writer(Operator, 3, 4, 1), Services: services("a")}))[0]
	for range 2 {
		got := r.do(opRegister(&rollcallv1.RegisterOperation{Fence: writer(Operator, 0, 0, 1), Services: services("b")}))[0]
		require.NoError(t, got.Err)
	}
	info, ok := r.State().Owner(Operator)
	require.True(t, ok)
	require.Equal(t, OwnerInfo{Owner: Operator, Incarnation: 3, Seq: 4, Entries: 2}, info)
	require.Equal(t, fenced, r.do(opRegister(&rollcallv1.RegisterOperation{Fence: writer(Operator, 3, 4, 1)}))[0])
}

func TestRegister_FullSet_RemovesTheOwnersOthers(t *testing.T) {
	t.Parallel()
	fullSet := func(o Owner, seq uint64, ids ...string) *rollcallv1.Operation {
		return opRegister(&rollcallv1.RegisterOperation{Fence: writer(o, 1, seq, 1), Services: services(ids...), FullSet: true})
	}
	r := newReplica(t)
	r.register(edge1, 1, "a", "b", "c", "d")
	r.register(edge2, 1, "x", "y")
	r.register(Static, 1, "s-0", "s-1", "s-2")

	got := r.do(fullSet(edge1, 2, "e", "c", "s-0"))[0]
	require.Equal(t, Answer{Epoch: 1, Index: 5, Registered: 2, Unchanged: 1, Removed: 3}, got.Answer)
	require.Equal(t, []string{
		"c=gateway/edge-1", "e=gateway/edge-1", "s-0=gateway/edge-1", "s-1=static", "s-2=static",
		"x=gateway/edge-2", "y=gateway/edge-2",
	}, r.owners(), "others keep what they have")

	// A smaller static fleet must remove its missing services and keep the yielded ones.
	got = r.do(fullSet(Static, 2, "s-0", "s-1"))[0]
	require.Equal(t, Answer{Epoch: 1, Index: 6, Unchanged: 1, Yielded: 1, Removed: 1}, got.Answer)

	// An empty full set must remove all services of its owner.
	got = r.do(fullSet(edge1, 3))[0]
	require.Equal(t, Answer{Epoch: 1, Index: 7, Removed: 3}, got.Answer)
	require.Equal(t, []string{"s-1=static", "x=gateway/edge-2", "y=gateway/edge-2"}, r.owners())
	require.Equal(t, Answer{Epoch: 1, Index: 8}, r.do(fullSet(edge1, 4))[0].Answer, "again, with nothing to remove")
}

func TestRegister_FullSetTakesOver_RemovesOnlyOwnServices(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	r.register(edge1, 1, "a")
	r.register(edge2, 1, "b", "c")
	got := r.do(opRegister(&rollcallv1.RegisterOperation{
		Fence: writer(edge1, 1, 2, 1), Services: services("b"), FullSet: true, Gone: []*rollcallv1.Owner{edge2.Proto()},
	}))[0]
	require.Equal(t, Answer{Epoch: 1, Index: 4, Registered: 1, Removed: 1}, got.Answer)
	require.Equal(t, []string{"b=gateway/edge-1", "c=gateway/edge-2"}, r.owners())
	info, _ := r.State().Owner(edge2)
	require.Equal(t, 1, info.Entries)
}

func TestRegister_ChangedService_ReplacesIt(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	r.register(edge1, 1, "a", "b")
	a, _ := r.State().Get("a")
	b, _ := r.State().Get("b")

	cache, err := EncodeService(&rollcallv1.Service{Id: "b", Kind: "cache", WorkerRef: &rollcallv1.WorkerRef{Url: "tcp://b:1"}})
	require.NoError(t, err)
	got := r.do(opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge1, 1, 2, 1), Services: [][]byte{service("a"), cache}}))[0]
	require.Equal(t, Answer{Epoch: 1, Index: 3, Registered: 1, Unchanged: 1}, got.Answer)

	after, _ := r.State().Get("a")
	require.Same(t, a, after, "an unchanged entry keeps its version")
	after, _ = r.State().Get("b")
	require.Greater(t, after.Version, b.Version)
	require.Equal(t, "tcp://b:1", after.URL())
	require.Equal(t, 1, r.State().Count("relayer"))
	require.Equal(t, 1, r.State().Count("cache"))

	// An entry taken over unchanged must get a new version, because the owner is part of the entry.
	r.do(opRegister(&rollcallv1.RegisterOperation{Fence: writer(Operator, 0, 0, 1), Services: services("a"), Force: true}))
	after, _ = r.State().Get("a")
	require.Greater(t, after.Version, a.Version)
}

// An operation must see the earlier ones of its command, and is refused or applied independently.
func TestApply_SeveralOperations_SeeTheEarlierOnes(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	rs := r.do(
		opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge1, 1, 1, 1), Services: services("a")}),
		opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge2, 1, 1, 1), Services: services("a", "b")}),
		opDeregister(&rollcallv1.DeregisterOperation{Fence: writer(edge1, 1, 2, 1), Ids: []string{"a"}}),
		opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge2, 1, 2, 1), Services: services("a")}),
		opEstablish("n-2", 0),
		opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge2, 1, 3, 1), Services: services("c")}),
	)
	require.Equal(t, []Result{
		{Answer: Answer{Epoch: 1, Index: 2, Registered: 1}},
		{Answer: Answer{Epoch: 1, Index: 2}, Err: &ConflictError{Conflicts: []Conflict{{0, "a", edge1}}}},
		{Answer: Answer{Epoch: 1, Index: 2, Removed: 1}},
		{Answer: Answer{Epoch: 1, Index: 2, Registered: 1}},
		{Answer: Answer{Epoch: 2, Index: 2}, Term: r.term},
		{Err: &StaleEpochError{Epoch: 2}},
	}, rs)
	require.Equal(t, []string{"a=gateway/edge-2"}, r.owners())
	a, _ := r.State().Get("a")
	require.Equal(t, uint64(2<<versionBits|3), a.Version)
}

func TestLeaderEstablished_Epoch_NeverDecreases(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                          string
		previous, term, atLeast, want uint64
	}{
		{"the first", 0, 0, 0, 1},
		{"the term, when higher", 1, 9, 0, 9},
		{"previous + 1, when higher", 9, 3, 0, 10},
		{"at least, when higher", 9, 11, 40, 40},
		{"at least, when lower", 9, 3, 5, 10},
		{"at least is the previous one", 9, 3, 9, 10},
		{"the last there is", math.MaxUint64, 3, 5, math.MaxUint64},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := &replica{Machine: New(), t: t}
			r.do(opEstablish("n-0", tt.previous))
			if tt.previous == 0 {
				r = &replica{Machine: New(), t: t}
			}
			r.term = tt.term
			got := r.do(opEstablish("n-1", tt.atLeast))[0]
			require.Equal(t, Result{Answer: Answer{Epoch: tt.want, Index: r.index}, Term: tt.term}, got)
			require.Equal(t, tt.want, r.State().Epoch())
			require.Equal(t, "n-1", r.State().Leader())
		})
	}
}

func TestLeaderEstablished_ClusterNamed_KeepsTheName(t *testing.T) {
	t.Parallel()
	m := New()
	require.Empty(t, m.State().Cluster())
	r := &replica{Machine: m, t: t}
	for _, id := range []string{"", "c-1", "c-2"} {
		op := opEstablish("n-1", 0)
		op.GetLeaderEstablished().Cluster = id
		r.do(op)
	}
	require.Equal(t, "c-1", m.State().Cluster())
}

// Another body under a used sequence number must be refused without a change. An entry without a hash, from an older
// leader, must still apply.
func TestAdmit_ComparesBodies(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		first, second string // "" for an entry without a hash
		refused       bool
	}{
		"same body":          {"x", "x", false},
		"other body":         {"x", "y", true},
		"second has no hash": {"x", "", false},
		"first has no hash":  {"", "y", false},
		"neither has a hash": {"", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fence := func(body string) *rollcallv1.WriteFence {
				if body == "" {
					return writer(edge1, 1, 5, 1)
				}
				return hashed(edge1, 1, 5, 1, body)
			}
			r := newReplica(t)
			first := r.do(opRegister(&rollcallv1.RegisterOperation{Fence: fence(tt.first), Services: services("a")}))[0]
			require.NoError(t, first.Err)
			before := dump(r.State())

			second := r.do(opRegister(&rollcallv1.RegisterOperation{Fence: fence(tt.second), Services: services("b")}))[0]
			want := first
			if tt.refused {
				want = Result{Err: &SequenceReusedError{
					Owner: edge1, Incarnation: 1, Seq: 5, Recorded: hashOf(tt.first), Received: hashOf(tt.second),
				}}
				require.ErrorContains(t, second.Err, hashOf(tt.first).String())
				require.ErrorContains(t, second.Err, hashOf(tt.second).String())
			}
			require.Equal(t, want, second)
			after := dump(r.State())
			require.Equal(t, strings.SplitN(before, "\n", 2)[1], strings.SplitN(after, "\n", 2)[1], "all but the index stays")

			next := writer(edge1, 1, 6, 1)
			require.NoError(t, r.do(opRegister(&rollcallv1.RegisterOperation{Fence: next, Services: services("b")}))[0].Err)
			info, _ := r.State().Owner(edge1)
			require.Equal(t, OwnerInfo{Owner: edge1, Incarnation: 1, Seq: 6, Entries: 2}, info, "a newer answer must not keep an older hash")
		})
	}
}

func TestApply_OwnerWithoutServices_IsForgottenLater(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	r.register(edge1, 1, "a")
	r.register(edge2, 1, "b")
	r.do(opDeregister(&rollcallv1.DeregisterOperation{Fence: writer(edge2, 1, 2, 1), Ids: []string{"b"}}))
	_, ok := r.State().Owner(edge2)
	require.True(t, ok, "its fence is valid until the epoch ends")
	require.Equal(t, &SupersededError{edge2, 1, 2}, r.register(edge2, 1, "b").Err)

	// The answer to the last write was lost with the leader, and another owner has registered the id since.
	r.do(opEstablish("n-2", 0))
	r.do(opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge1, 1, 2, 2), Services: services("b")}))
	again := r.do(opDeregister(&rollcallv1.DeregisterOperation{Fence: writer(edge2, 1, 2, 2), Ids: []string{"b"}}))[0]
	require.NoError(t, again.Err)
	require.Equal(t, 1, again.Removed, "it was done once, and is answered again")

	for range rememberEpochs {
		_, ok = r.State().Owner(edge2)
		require.True(t, ok)
		r.do(opEstablish("n-2", 0))
	}
	_, ok = r.State().Owner(edge2)
	require.False(t, ok)
	info, ok := r.State().Owner(edge1)
	require.True(t, ok)
	require.Equal(t, uint64(2), info.Seq, "an owner of something is remembered")
	late := r.do(opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge2, 1, 1, 1), Services: services("b")}))[0]
	require.Equal(t, &StaleEpochError{Epoch: r.State().Epoch()}, late.Err, "writes of the previous epoch stay fenced")
}

// A refused owner without entries must be remembered like any other, with at most maxConflicts conflicts.
func TestApply_RefusedOwner_IsRemembered(t *testing.T) {
	t.Parallel()
	ids := make([]string, 10*maxConflicts)
	for i := range ids {
		ids[i] = fmt.Sprintf("s-%04d", i)
	}
	conflicts := func(refused Result) int {
		var ce *ConflictError
		require.ErrorAs(t, refused.Err, &ce)
		return len(ce.Conflicts)
	}
	r := newReplica(t)
	r.register(edge1, 1, ids...)
	for range rememberEpochs {
		r.do(opEstablish("n-2", 0))
	}
	require.Equal(t, len(ids), conflicts(r.register(edge2, 1, ids...)), "the first answer names all")
	require.Equal(t, maxConflicts, conflicts(r.register(edge2, 1, ids...)))
	for range rememberEpochs {
		r.do(opEstablish("n-2", 0))
		_, known := r.State().Owner(edge2)
		require.True(t, known)
	}
	m := New()
	require.NoError(t, restore(m, snapshotOf(t, r.State())))
	require.Equal(t, dump(r.State()), dump(m.State()))
	r.do(opEstablish("n-2", 0))
	_, known := r.State().Owner(edge2)
	require.False(t, known)
}

func TestApply_ManyOwnersWithoutServices_AreLimited(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	r.register(edge1, 1, "a")
	passing := func(i int) Owner { return gateway(fmt.Sprintf("passing-%d", i)) }
	come := func(from, to int) {
		var ops []*rollcallv1.Operation
		for i := from; i < to; i++ {
			fence := writer(passing(i), 1, 1, r.State().Epoch())
			ops = append(ops, opDeregister(&rollcallv1.DeregisterOperation{Fence: fence, Ids: []string{"b"}}))
		}
		for some := range slices.Chunk(ops, MaxOperations) {
			r.index++
			r.Apply(&raft.Log{Index: r.index, Term: r.term, Data: encode(some...)})
		}
		checkInvariants(t, r.Machine) // once: it takes longer than all operations
	}
	come(0, maxIdle)
	require.Equal(t, 1+maxIdle, r.State().owners.Len())

	// A replica restored from a snapshot in between must forget the same owners.
	m := New()
	require.NoError(t, restore(m, snapshotOf(t, r.State())))
	other := &replica{Machine: m, t: t, index: r.index, term: r.term}
	next := opDeregister(&rollcallv1.DeregisterOperation{Fence: writer(edge2, 1, 1, r.State().Epoch()), Ids: []string{"b"}})
	r.do(next)
	other.do(next)
	require.Equal(t, dump(r.State()), dump(other.State()))
	require.Equal(t, 1+maxIdle/8*7, r.State().owners.Len())

	come(maxIdle, 2*maxIdle)
	require.LessOrEqual(t, r.State().owners.Len(), maxIdle+1)
	_, ok := r.State().Owner(passing(0))
	require.False(t, ok)
	_, ok = r.State().Owner(passing(2*maxIdle - 1))
	require.True(t, ok, "the last writer is remembered")
	_, ok = r.State().Owner(edge1)
	require.True(t, ok, "an owner of entries is remembered")
}

func TestUnchanged_OwnersServices_AreCompared(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	r.register(edge1, 1, "a", "b")
	r.register(Static, 1, "s")
	for _, tt := range []struct {
		name    string
		owner   Owner
		ids     []string
		raws    [][]byte
		fullSet bool
		want    Answer
		ok      bool
	}{
		{"all of it", edge1, []string{"a", "b"}, services("a", "b"), true, Answer{Unchanged: 2}, true},
		{"a part", edge1, []string{"b"}, services("b"), false, Answer{Unchanged: 1}, true},
		{"a part, as the full set", edge1, []string{"b"}, services("b"), true, Answer{}, false},
		{"one more", edge1, []string{"a", "b", "c"}, services("a", "b", "c"), false, Answer{}, false},
		{"another value", edge1, []string{"a"}, [][]byte{service("a", "v2")}, false, Answer{}, false},
		{"another's", edge2, []string{"a"}, services("a"), false, Answer{}, false},
		{"nothing", edge2, nil, nil, true, Answer{}, true},
		{"static, and yielded", Static, []string{"a", "s"}, services("a", "s"), true, Answer{Unchanged: 1, Yielded: 1}, true},
		{"a static one, by a gateway", edge1, []string{"s"}, services("s"), false, Answer{}, false},
		{"empty full set of an owner", edge1, nil, nil, true, Answer{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, ok := r.State().Unchanged(tt.owner, tt.ids, tt.raws, tt.fullSet)
			require.Equal(t, tt.ok, ok)
			if tt.ok {
				tt.want.Epoch, tt.want.Index = 1, 3
			}
			require.Equal(t, tt.want, got)
		})
	}
}

func TestState_From_ListsInOrder(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	require.Zero(t, r.State().Len())
	require.Empty(t, r.owners())
	r.register(edge1, 1, "c", "a", "b")
	old := r.State()
	r.register(edge1, 2, "d")

	collect := func(s *State, from string) (ids []string) {
		for e := range s.From(from) {
			ids = append(ids, e.ID)
		}
		return ids
	}
	require.Equal(t, []string{"a", "b", "c"}, collect(old, ""), "a state is immutable")
	require.Equal(t, []string{"b", "c", "d"}, collect(r.State(), "b"))
	require.Equal(t, []string{"c", "d"}, collect(r.State(), "bb"))
	require.Empty(t, collect(r.State(), "e"))
	for e := range r.State().All() {
		require.Equal(t, "a", e.ID)
		break
	}
	_, ok := r.State().Get("e")
	require.False(t, ok)
	_, ok = r.State().Owner(edge2)
	require.False(t, ok)
	require.Zero(t, r.State().Count("cache"))
}
