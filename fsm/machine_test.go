package fsm

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gateway returns the owner of a gateway.
func gateway(id string) Owner { return Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, ID: id} }

// service returns an encoded relayer whose URL contains value.
func service(id string, value ...any) []byte {
	raw, err := EncodeService(&rollcallv1.Service{Id: id, Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{
		Url: "http://" + id + ":3000/" + fmt.Sprint(value...), Labels: map[string]string{"chain": "1", "zone": "a"},
	}})
	if err != nil {
		panic(err)
	}
	return raw
}

func services(ids ...string) (raws [][]byte) {
	for _, id := range ids {
		raws = append(raws, service(id))
	}
	return raws
}

// writer returns a fence with the incarnation, seq and epoch.
func writer(o Owner, incarnation, seq, epoch uint64) *rollcallv1.WriteFence {
	return &rollcallv1.WriteFence{Owner: o.Proto(), Incarnation: incarnation, Seq: seq, Epoch: epoch}
}

// hashed returns the fence of writer with the hash of body.
func hashed(o Owner, incarnation, seq, epoch uint64, body string) *rollcallv1.WriteFence {
	f := writer(o, incarnation, seq, epoch)
	f.Body = hashOf(body).encoded()
	return f
}

func hashOf(body string) BodyHash { return sha256.Sum256([]byte(body)) }

func opEstablish(node string, atLeast uint64) *rollcallv1.Operation {
	return &rollcallv1.Operation{Kind: &rollcallv1.Operation_LeaderEstablished{
		LeaderEstablished: &rollcallv1.LeaderEstablished{Node: node, Cluster: "c-1", AtLeast: atLeast},
	}}
}

func opRegister(op *rollcallv1.RegisterOperation) *rollcallv1.Operation {
	return &rollcallv1.Operation{Kind: &rollcallv1.Operation_Register{Register: op}}
}

func opDeregister(op *rollcallv1.DeregisterOperation) *rollcallv1.Operation {
	return &rollcallv1.Operation{Kind: &rollcallv1.Operation_Deregister{Deregister: op}}
}

func opStage(op *rollcallv1.StageImportOperation) *rollcallv1.Operation {
	return &rollcallv1.Operation{Kind: &rollcallv1.Operation_StageImport{StageImport: op}}
}

func opFinish(op *rollcallv1.FinishImportOperation) *rollcallv1.Operation {
	return &rollcallv1.Operation{Kind: &rollcallv1.Operation_FinishImport{FinishImport: op}}
}

// importPart returns one part of an import with services of one owner.
func importPart(epoch uint64, id string, part uint32, o Owner, ids ...string) *rollcallv1.Operation {
	op := &rollcallv1.StageImportOperation{Epoch: epoch, Import: id, Part: part}
	for _, raw := range services(ids...) {
		op.Services = append(op.Services, &rollcallv1.ImportedService{Service: raw, Owner: o.Proto()})
	}
	return opStage(op)
}

// applyImport returns the operation that applies an import.
func applyImport(epoch uint64, id string, parts uint32) *rollcallv1.Operation {
	return opFinish(&rollcallv1.FinishImportOperation{Epoch: epoch, Import: id, Parts: parts, Apply: true})
}

func encode(ops ...*rollcallv1.Operation) []byte {
	data, err := proto.Marshal(&rollcallv1.Command{Operations: ops})
	if err != nil {
		panic(err)
	}
	return data
}

// replica applies its own log to a machine and checks the machine's invariants after each entry.
type replica struct {
	*Machine
	t           testing.TB
	index, term uint64
}

// newReplica returns an empty replica in epoch 1.
func newReplica(t testing.TB) *replica {
	r := &replica{Machine: New(), t: t, term: 1}
	r.do(opEstablish("n-1", 0))
	return r
}

// do applies one command.
func (r *replica) do(ops ...*rollcallv1.Operation) []Result {
	r.t.Helper()
	r.index++
	rs := r.Apply(&raft.Log{Index: r.index, Term: r.term, Data: encode(ops...)}).([]Result)
	require.Len(r.t, rs, len(ops))
	checkInvariants(r.t, r.Machine)
	return rs
}

// register applies a registration in the current epoch.
func (r *replica) register(o Owner, seq uint64, ids ...string) Result {
	r.t.Helper()
	return r.do(opRegister(&rollcallv1.RegisterOperation{
		Fence: writer(o, 1, seq, r.State().Epoch()), Services: services(ids...),
	}))[0]
}

// owners lists the directory as "id=owner".
func (r *replica) owners() (list []string) {
	for e := range r.State().All() {
		list = append(list, e.ID+"="+e.Owner.String())
	}
	return list
}

// dump returns a state as text; equal states have equal dumps.
func dump(s *State) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cluster %q epoch %d leader %q index %d services %d\n", s.Cluster(), s.Epoch(), s.Leader(), s.Index(), s.Len())
	s.owners.Scan(func(_ string, os *ownerState) bool {
		fmt.Fprintf(&b, "owner %s incarnation %d seq %d entries %d answer %s\n", os.owner, os.incarnation, os.seq, os.entries, dumpResult(os.answer))
		if (os.body != BodyHash{}) { // version 1 files have no hashes
			fmt.Fprintf(&b, "  body %s\n", os.body)
		}
		return true
	})
	s.kinds.Scan(func(kind string, n int) bool {
		fmt.Fprintf(&b, "kind %q %d\n", kind, n)
		return true
	})
	for e := range s.All() {
		fmt.Fprintf(&b, "service %s\n", dumpEntry(e))
	}
	if s.staged != nil { // version 1 and 2 files have none
		for _, part := range s.staged.parts {
			fmt.Fprintf(&b, "staged %s part %d epoch %d owners %v\n", part.id, part.part, part.epoch, part.owners)
			for _, e := range part.entries {
				fmt.Fprintf(&b, "  %s\n", dumpEntry(e))
			}
		}
	}
	return b.String()
}

func dumpEntry(e *Entry) string {
	if e == nil {
		return "-"
	}
	return fmt.Sprintf("%s kind %s owner %s version %d.%d %q", e.ID, e.Kind, e.Owner, e.Version>>versionBits, e.Version%MaxOperations, e.raw)
}

func dumpResult(r Result) string {
	s := fmt.Sprintf("%+v", r.Answer)
	if ce, ok := r.Err.(*ConflictError); ok { //nolint:errorlint // a result's error is never wrapped
		return s + fmt.Sprintf(" %+v", *ce)
	}
	if r.Err != nil {
		return s + fmt.Sprintf(" %+v", r.Err)
	}
	return s
}

func dumpChanges(c Changes) string {
	var b strings.Builder
	for _, ch := range c.Changes {
		fmt.Fprintf(&b, "%d: %s -> %s\n", c.Index, dumpEntry(ch.Before), dumpEntry(ch.After))
	}
	return b.String()
}

// checkInvariants checks that the indexes match the entries, and the published state the builder's.
func checkInvariants(t testing.TB, m *Machine) {
	t.Helper()
	s := m.State()
	require.Equal(t, dump(&m.builder.State), dump(s), "published and drafted state")
	owned := make(map[Owner]map[string]struct{})
	kinds := make(map[string]int)
	for e := range s.All() {
		if owned[e.Owner] == nil {
			owned[e.Owner] = make(map[string]struct{})
		}
		owned[e.Owner][e.ID] = struct{}{}
		kinds[e.Kind]++
		got, ok := s.Get(e.ID)
		require.True(t, ok && got == e, "the key of %s", e.ID)
	}
	require.Equal(t, owned, m.builder.owned)
	require.Len(t, m.builder.idleOwners(func(*ownerState) bool { return true }), m.builder.idle)
	for kind, n := range kinds {
		require.Equal(t, n, s.Count(kind), "count of kind %q", kind)
	}
	require.Equal(t, len(kinds), s.kinds.Len())
	require.ElementsMatch(t, slices.Collect(maps.Keys(kinds)), slices.Collect(maps.Keys(m.builder.kindNames)))
	for o, ids := range owned {
		info, ok := s.Owner(o)
		require.True(t, ok, "%s owns but is not known", o)
		require.Equal(t, len(ids), info.Entries, "entries of %s", o)
	}
}

// snapshotOf writes a state to memory.
func snapshotOf(t testing.TB, s *State) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, s.WriteSnapshot(&b))
	return b.Bytes()
}

func restore(m *Machine, snapshot []byte) error {
	return m.Restore(io.NopCloser(bytes.NewReader(snapshot)))
}
