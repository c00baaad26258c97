package fsm

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// filled returns a replica with services of several owners.
func filled(t testing.TB) *replica {
	r := newReplica(t)
	r.register(edge1, 7, "a", "b")
	r.register(edge2, 1, "c")
	r.do(opRegister(&rollcallv1.RegisterOperation{Fence: writer(Operator, 0, 0, 1), Services: services("d")}))
	return r
}

func TestImport_ReplacesTheDirectory(t *testing.T) {
	t.Parallel()
	r := filled(t)
	_, feed := r.Watch()
	unchanged, _ := r.State().Get("a")

	require.Equal(t, []Result{{Answer: Answer{Epoch: 1, Index: 5}}}, r.do(importPart(1, "i", 0, edge1, "a", "c")))
	r.do(importPart(1, "i", 1, Static, "s"))
	require.Equal(t, []string{"a=gateway/edge-1", "b=gateway/edge-1", "c=gateway/edge-2", "d=operator"}, r.owners(), "staging must change no service")
	requireIdle(t, feed)

	got := r.do(applyImport(1, "i", 2))[0]
	require.Equal(t, Result{Answer: Answer{Epoch: 1, Index: 7, Registered: 2, Unchanged: 1, Removed: 2}}, got)
	require.Equal(t, []string{"a=gateway/edge-1", "c=gateway/edge-1", "s=static"}, r.owners())
	after, _ := r.State().Get("a")
	require.Same(t, unchanged, after, "an unchanged entry keeps its version")
	all, err := drain(t, feed)
	require.NoError(t, err)
	require.Len(t, all, 1, "readers must receive one command")
	require.Len(t, all[0].Changes, 4)
	require.Nil(t, r.State().staged)

	// The same import again must change nothing.
	before := r.State()
	r.do(importPart(1, "j", 0, edge1, "a", "c"), importPart(1, "j", 1, Static, "s"))
	require.Equal(t, Answer{Epoch: 1, Index: 9, Unchanged: 3}, r.do(applyImport(1, "j", 2))[0].Answer)
	for e := range before.All() {
		same, _ := r.State().Get(e.ID)
		require.Same(t, e, same)
	}
	requireIdle(t, feed)
}

// An import must be applied only as the last one staged, whole, and in the epoch of its leader.
func TestImport_RefusedChangesNothing(t *testing.T) {
	t.Parallel()
	stale := &StaleEpochError{Epoch: 1}
	for name, tt := range map[string]struct {
		ops []*rollcallv1.Operation
		err error // of the last one
	}{
		"nothing staged":             {[]*rollcallv1.Operation{applyImport(1, "i", 0)}, ErrImportLost},
		"a part is missing":          {[]*rollcallv1.Operation{importPart(1, "i", 0, edge1, "x"), applyImport(1, "i", 2)}, ErrImportLost},
		"a part too many":            {[]*rollcallv1.Operation{importPart(1, "i", 0, edge1, "x"), importPart(1, "i", 1, edge1, "y"), applyImport(1, "i", 1)}, ErrImportLost},
		"first part is missing":      {[]*rollcallv1.Operation{importPart(1, "i", 1, edge1, "x")}, ErrImportLost},
		"a part is skipped":          {[]*rollcallv1.Operation{importPart(1, "i", 0, edge1, "x"), importPart(1, "i", 2, edge1, "y")}, ErrImportLost},
		"a part twice":               {[]*rollcallv1.Operation{importPart(1, "i", 0, edge1, "x"), importPart(1, "i", 1, edge1, "y"), importPart(1, "i", 1, edge1, "y")}, ErrImportLost},
		"another import began":       {[]*rollcallv1.Operation{importPart(1, "i", 0, edge1, "x"), importPart(1, "j", 0, edge1, "y"), applyImport(1, "i", 1)}, ErrImportLost},
		"part of a replaced import":  {[]*rollcallv1.Operation{importPart(1, "i", 0, edge1, "x"), importPart(1, "j", 0, edge1, "y"), importPart(1, "i", 1, edge1, "z")}, ErrImportLost},
		"dropped":                    {[]*rollcallv1.Operation{importPart(1, "i", 0, edge1, "x"), opFinish(&rollcallv1.FinishImportOperation{Epoch: 1, Import: "i"}), applyImport(1, "i", 1)}, ErrImportLost},
		"a drop of another import":   {[]*rollcallv1.Operation{importPart(1, "i", 0, edge1, "x"), opFinish(&rollcallv1.FinishImportOperation{Epoch: 1, Import: "j"})}, ErrImportLost},
		"part of an earlier leader":  {[]*rollcallv1.Operation{importPart(2, "i", 0, edge1, "x")}, stale},
		"apply by an earlier leader": {[]*rollcallv1.Operation{importPart(1, "i", 0, edge1, "x"), applyImport(2, "i", 1)}, stale},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := filled(t)
			before := r.owners()
			results := r.do(tt.ops...)
			require.Equal(t, tt.err, results[len(results)-1].Err)
			for _, earlier := range results[:len(results)-1] {
				require.NoError(t, earlier.Err)
			}
			require.Equal(t, before, r.owners())
		})
	}
}

func TestImport_NewEpochDropsIt(t *testing.T) {
	t.Parallel()
	r := filled(t)
	before := r.owners()
	r.do(importPart(1, "i", 0, edge1, "x"))
	r.do(opEstablish("n-2", 0))
	require.Nil(t, r.State().staged)
	require.Equal(t, &StaleEpochError{Epoch: 2}, r.do(applyImport(1, "i", 1))[0].Err)
	require.Equal(t, ErrImportLost, r.do(applyImport(2, "i", 1))[0].Err)
	require.Equal(t, before, r.owners())
}

// A late write of an earlier incarnation or sequence number must stay refused after an import, and a gateway's next
// write must be accepted.
func TestImport_NeverLowersAFence(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		imported uint64 // incarnation of edge-1, which has written seq 7 of incarnation 1
		late     *rollcallv1.WriteFence
		want     error
		next     *rollcallv1.WriteFence
	}{
		"not in the file":      {0, writer(edge1, 1, 6, 1), &SupersededError{edge1, 1, 7}, writer(edge1, 1, 8, 1)},
		"same incarnation":     {1, writer(edge1, 1, 6, 1), &SupersededError{edge1, 1, 7}, writer(edge1, 1, 8, 1)},
		"newer incarnation":    {3, writer(edge1, 2, 9, 1), &SupersededError{edge1, 3, 0}, writer(edge1, 3, 1, 1)},
		"newer, and restarted": {3, writer(edge1, 1, 8, 1), &SupersededError{edge1, 3, 0}, writer(edge1, 4, 1, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := filled(t)
			part := importPart(1, "i", 0, edge2, "c")
			if tt.imported > 0 {
				part.GetStageImport().Owners = []*rollcallv1.ImportedOwner{{Owner: edge1.Proto(), Incarnation: tt.imported}}
			}
			r.do(part, applyImport(1, "i", 1))
			require.Equal(t, []string{"c=gateway/edge-2"}, r.owners())
			require.Equal(t, tt.want, r.do(opRegister(&rollcallv1.RegisterOperation{Fence: tt.late, Services: services("late")}))[0].Err)
			require.NoError(t, r.do(opRegister(&rollcallv1.RegisterOperation{Fence: tt.next, Services: services("next")}))[0].Err)
			require.Equal(t, []string{"c=gateway/edge-2", "next=gateway/edge-1"}, r.owners())
		})
	}
}

// An owner that only the import names must be known afterwards, so that its entries can be stored.
func TestImport_UnknownOwners(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	part := importPart(1, "i", 0, edge1, "a")
	part.GetStageImport().Owners = []*rollcallv1.ImportedOwner{
		{Owner: edge1.Proto(), Incarnation: 5}, {Owner: edge2.Proto(), Incarnation: 6},
	}
	r.do(part, importPart(1, "i", 1, Operator, "b"), applyImport(1, "i", 2))
	var owners []OwnerInfo
	for o := range r.State().Owners() {
		owners = append(owners, o)
	}
	require.Equal(t, []OwnerInfo{
		{Owner: edge1, Incarnation: 5, Entries: 1}, {Owner: edge2, Incarnation: 6}, {Owner: Operator, Entries: 1},
	}, owners)
	m := New()
	require.NoError(t, restore(m, snapshotOf(t, r.State())))
	require.Equal(t, dump(r.State()), dump(m.State()))
}

// A replica that starts from a snapshot between the parts must apply the import like the others.
func TestImport_SnapshotBetweenParts(t *testing.T) {
	t.Parallel()
	r := filled(t)
	r.do(importPart(1, "i", 0, edge1, "a", "x"))
	other := &replica{Machine: New(), t: t, index: r.index, term: r.term}
	file := snapshotOf(t, r.State())
	require.NoError(t, restore(other.Machine, file))
	var copied bytes.Buffer
	_, err := CopySnapshot(&copied, bytes.NewReader(file), 0, "")
	require.NoError(t, err)
	require.Equal(t, file, copied.Bytes())
	for _, replica := range []*replica{r, other} {
		replica.do(importPart(1, "i", 1, edge2, "y"))
		require.Equal(t, Answer{Epoch: 1, Index: 7, Registered: 2, Unchanged: 1, Removed: 3}, replica.do(applyImport(1, "i", 2))[0].Answer)
	}
	require.Equal(t, dump(r.State()), dump(other.State()))

	// A snapshot with a missing or repeated part must be refused.
	parts := func(numbers ...uint32) []byte {
		var recs []*rollcallv1.SnapshotRecord
		recs = append(recs, &rollcallv1.SnapshotRecord{Record: &rollcallv1.SnapshotRecord_Header{Header: &rollcallv1.SnapshotHeader{Format: snapshotFormat}}})
		for _, n := range numbers {
			recs = append(recs, &rollcallv1.SnapshotRecord{Record: &rollcallv1.SnapshotRecord_Staged{Staged: importPart(1, "i", n, edge1, "x").GetStageImport()}})
		}
		return frame(append(recs, &rollcallv1.SnapshotRecord{Record: &rollcallv1.SnapshotRecord_Trailer{Trailer: &rollcallv1.SnapshotTrailer{}}}))
	}
	require.NoError(t, restore(New(), parts(0, 1)))
	for _, numbers := range [][]uint32{{1}, {0, 0}, {0, 2}} {
		require.ErrorContains(t, restore(New(), parts(numbers...)), "out of order", fmt.Sprint(numbers))
	}
}

// A snapshot may be written while later parts are staged and applied.
func TestImport_SnapshotDuringLaterParts(t *testing.T) {
	t.Parallel()
	r := filled(t)
	r.do(importPart(1, "i", 0, edge1, "a", "x"))
	state := r.State()
	want := snapshotOf(t, state)
	done := make(chan error, 1)
	go func() {
		for range 100 {
			if err := state.WriteSnapshot(io.Discard); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for part := range uint32(50) {
		r.do(importPart(1, "i", part+1, edge2, fmt.Sprintf("p-%02d", part)))
	}
	r.do(applyImport(1, "i", 51))
	require.NoError(t, <-done)
	require.Equal(t, want, snapshotOf(t, state))
	require.Equal(t, 52, r.State().Len())
}

func TestImport_TenThousandServices(t *testing.T) {
	t.Parallel()
	const total, perPart = 10_000, 1_000
	m := New()
	index := uint64(0)
	apply := func(op *rollcallv1.Operation) Result {
		index++
		return m.Apply(&raft.Log{Index: index, Term: 1, Data: encode(op)}).([]Result)[0]
	}
	require.NoError(t, apply(opEstablish("n-1", 0)).Err)
	for part := range uint32(total / perPart) {
		ids := make([]string, perPart)
		for i := range ids {
			ids[i] = fmt.Sprintf("s-%05d", int(part)*perPart+i)
		}
		require.NoError(t, apply(importPart(1, "i", part, gateway(fmt.Sprintf("edge-%d", part)), ids...)).Err)
	}
	require.Equal(t, total, apply(applyImport(1, "i", total/perPart)).Registered)
	require.Equal(t, total, m.State().Len())
	checkInvariants(t, m)
}
