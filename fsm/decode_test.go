package fsm

import (
	"slices"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// newer adds a field that no version supports.
func newer(m proto.Message) {
	r := m.ProtoReflect()
	r.SetUnknown(append(slices.Clone(r.GetUnknown()), protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1)...))
}

// messages visits all messages within m, including m.
func messages(m protoreflect.Message, visit func(protoreflect.Message)) {
	visit(m)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() != nil && f.IsList():
			for i := range v.List().Len() {
				messages(v.List().Get(i).Message(), visit)
			}
		case f.Message() != nil:
			messages(v.Message(), visit)
		}
		return true
	})
}

// everything returns a command with every operation and every field.
func everything() *rollcallv1.Command {
	return &rollcallv1.Command{Operations: []*rollcallv1.Operation{
		opEstablish("n-2", 1),
		opRegister(&rollcallv1.RegisterOperation{
			Fence: hashed(edge1, 1, 1, 2, "x y"), Services: services("x", "y"), FullSet: true, Force: true,
			Gone: []*rollcallv1.Owner{edge2.Proto(), Static.Proto()},
		}),
		opDeregister(&rollcallv1.DeregisterOperation{Fence: hashed(edge1, 1, 2, 2, "x"), Ids: []string{"x"}, Force: true}),
		opStage(&rollcallv1.StageImportOperation{
			Epoch: 2, Import: "i-1", Owners: []*rollcallv1.ImportedOwner{{Owner: edge1.Proto(), Incarnation: 4}},
			Services: []*rollcallv1.ImportedService{{Service: service("x"), Owner: edge1.Proto()}},
		}),
		importPart(2, "i-1", 1, Static, "y"),
		opFinish(&rollcallv1.FinishImportOperation{Epoch: 2, Import: "i-1", Parts: 2, Apply: true}),
		importPart(2, "i-2", 0, edge2, "z"),
	}}
}

// applyOrDecodeError applies a batch and returns the *DecodeError that Apply panics with.
func applyOrDecodeError(t testing.TB, m *Machine, logs ...*raft.Log) (err *DecodeError) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			var ok bool
			err, ok = p.(*DecodeError)
			require.True(t, ok, "panics with %T: %v", p, p)
		}
	}()
	m.ApplyBatch(logs)
	return nil
}

// An entry that this version does not fully support must stop the replica before any entry of its batch is applied.
func TestApply_UnreadableEntry_StopsTheReplica(t *testing.T) {
	t.Parallel()
	type test struct {
		name string
		data []byte
		says string
	}
	marshal := func(c *rollcallv1.Command) []byte {
		data, err := proto.Marshal(c)
		require.NoError(t, err)
		return data
	}
	fenced := func(o *rollcallv1.Owner) []byte {
		return encode(opEstablish("n-2", 0), opRegister(&rollcallv1.RegisterOperation{
			Fence: &rollcallv1.WriteFence{Owner: o, Epoch: 2}, Services: services("x"),
		}))
	}
	tests := []test{
		{"nothing", nil, "command of 0 operations"},
		{"not protobuf", []byte("hello"), "proto"},
		{"cut off", marshal(everything())[:40], "proto"},
		{"too many operations", encode(slices.Repeat([]*rollcallv1.Operation{opEstablish("n-2", 0)}, MaxOperations+1)...), "command of 1025 operations"},
		{"empty operation", encode(opEstablish("n-2", 0), &rollcallv1.Operation{}), "operation 1: of an unknown kind"},
		{"no fence", encode(opEstablish("n-2", 0), opDeregister(&rollcallv1.DeregisterOperation{})), "is not an owner"},
		{"no owner", fenced(nil), "is not an owner"},
		{"nameless gateway", fenced(&rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY}), `"gateway/" is not an owner`},
		{"named static", fenced(&rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_STATIC, Id: "x"}), "is not an owner"},
		{"owner of an unknown kind", fenced(&rollcallv1.Owner{Kind: 4}), "rollcall.v1.Owner.kind is 4, which this version does not know"},
		{"gone owner of an unknown kind", encode(opEstablish("n-2", 0), opRegister(&rollcallv1.RegisterOperation{
			Fence: writer(edge1, 1, 1, 2), Gone: []*rollcallv1.Owner{{Kind: 4}},
		})), "does not know"},
		{"cut body hash", encode(opEstablish("n-2", 0), opDeregister(&rollcallv1.DeregisterOperation{
			Fence: &rollcallv1.WriteFence{Owner: edge1.Proto(), Incarnation: 1, Seq: 1, Epoch: 2, Body: make([]byte, 31)},
		})), "operation 1: body hash of 31 bytes, want 32"},
		{"service without an id", encode(opEstablish("n-2", 0), opRegister(&rollcallv1.RegisterOperation{
			Fence: writer(edge1, 1, 1, 2), Services: [][]byte{service("x"), {}},
		})), "operation 1: service 1: no id"},
		{"service that does not decode", encode(opEstablish("n-2", 0), opRegister(&rollcallv1.RegisterOperation{
			Fence: writer(edge1, 1, 1, 2), Services: [][]byte{{0x0a, 0x05, 'x'}},
		})), "operation 1: service 0: unexpected EOF"},
	}
	staged := func(is *rollcallv1.ImportedService, owners ...*rollcallv1.ImportedOwner) []byte {
		return encode(opEstablish("n-2", 0), opStage(&rollcallv1.StageImportOperation{
			Epoch: 2, Import: "i", Owners: owners, Services: []*rollcallv1.ImportedService{is},
		}))
	}
	x := &rollcallv1.ImportedService{Service: service("x"), Owner: edge1.Proto()}
	tests = append(tests,
		test{"imported service without an owner", staged(&rollcallv1.ImportedService{Service: service("x")}), "operation 1: service 0: \"unspecified/\" is not an owner"},
		test{"imported service without an id", staged(&rollcallv1.ImportedService{Owner: edge1.Proto()}), "operation 1: service 0: no id"},
		test{"imported owner of an unknown kind", staged(x, &rollcallv1.ImportedOwner{Owner: &rollcallv1.Owner{Kind: 4}}), "does not know"},
		test{"imported owner without a name", staged(x, &rollcallv1.ImportedOwner{}), "is not an owner"},
	)
	// Each message of a command gets one unknown field.
	count := 0
	messages(everything().ProtoReflect(), func(protoreflect.Message) { count++ })
	for n := range count {
		c := everything()
		var name string
		i := 0
		messages(c.ProtoReflect(), func(m protoreflect.Message) {
			if i == n {
				name = string(m.Descriptor().FullName())
				newer(m.Interface())
			}
			i++
		})
		tests = append(tests, test{"unknown field in " + name, marshal(c), name + " has a field that this version does not know"})
	}
	require.Greater(t, count, 10)

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newReplica(t)
			r.register(edge1, 1, "a")
			state := r.State()
			_, feed := r.Watch()

			good := &raft.Log{Index: 3, Data: encode(opDeregister(&rollcallv1.DeregisterOperation{Fence: writer(edge1, 1, 2, 1), Ids: []string{"a"}}))}
			err := applyOrDecodeError(t, r.Machine, good, &raft.Log{Index: 4, Data: tt.data})
			require.NotNil(t, err, "the entry was applied")
			require.Equal(t, uint64(4), err.Index)
			require.ErrorContains(t, err, "raft log entry 4 cannot be applied: ")
			require.ErrorContains(t, err.Unwrap(), tt.says)

			require.Same(t, state, r.State())
			requireIdle(t, feed)
			checkInvariants(t, r.Machine)
		})
	}
	require.Nil(t, applyOrDecodeError(t, New(), &raft.Log{Index: 1, Data: marshal(everything())}))
}

// Membership entries in a batch must get no answer and change nothing.
func TestApplyBatch_MembershipEntries_ChangeNothing(t *testing.T) {
	t.Parallel()
	m := New()
	state := m.State()
	conf := &raft.Log{Index: 1, Type: raft.LogConfiguration, Data: []byte("not a command")}
	require.Equal(t, []any{nil}, m.ApplyBatch([]*raft.Log{conf}))
	require.Same(t, state, m.State())
	answers := m.ApplyBatch([]*raft.Log{conf, {Index: 2, Data: encode(opEstablish("n-1", 0))}, conf})
	require.Equal(t, []any{nil, []Result{{Answer: Answer{Epoch: 1, Index: 2}}}, nil}, answers)
	require.Equal(t, uint64(2), m.State().Index())
}
