package fsm

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// CommandVersion is the newest command version that this build supports. Raise it with each new operation or field in
// log.proto.
const CommandVersion = 3

// MaxOperations is the maximum number of operations in one command.
const MaxOperations = 1 << versionBits

// command is a fully decoded log entry, so that applying it cannot fail halfway.
type command struct {
	index, term uint64
	operations  []any // establish, register, deregister, stageImport or finishImport
}

type establish struct {
	node, cluster string
	atLeast       uint64
}

type register struct {
	fence
	entries        []*Entry // without owner and version
	fullSet, force bool
	gone           map[Owner]struct{} // usually nil: no gone owners
}

type deregister struct {
	fence
	ids   []string
	force bool
}

type fence struct {
	owner                   Owner
	incarnation, seq, epoch uint64
	body                    BodyHash
}

func decode(index, term uint64, data []byte) (*command, error) {
	var msg rollcallv1.Command
	if err := proto.Unmarshal(data, &msg); err != nil {
		return nil, err
	}
	if err := rejectUnknownFields(msg.ProtoReflect()); err != nil {
		return nil, err
	}
	if n := len(msg.Operations); n == 0 || n > MaxOperations {
		return nil, fmt.Errorf("command of %d operations", n)
	}
	c := &command{index: index, term: term, operations: make([]any, len(msg.Operations))}
	for i, op := range msg.Operations {
		var err error
		switch k := op.Kind.(type) {
		case *rollcallv1.Operation_LeaderEstablished:
			e := k.LeaderEstablished
			c.operations[i] = establish{node: e.Node, cluster: e.Cluster, atLeast: e.AtLeast}
		case *rollcallv1.Operation_Register:
			c.operations[i], err = decodeRegister(k.Register)
		case *rollcallv1.Operation_Deregister:
			c.operations[i], err = decodeDeregister(k.Deregister)
		case *rollcallv1.Operation_StageImport:
			c.operations[i], err = decodeStageImport(k.StageImport)
		case *rollcallv1.Operation_FinishImport:
			f := k.FinishImport
			c.operations[i] = finishImport{epoch: f.Epoch, id: f.Import, parts: f.Parts, apply: f.Apply}
		default:
			err = errors.New("of an unknown kind")
		}
		if err != nil {
			return nil, fmt.Errorf("operation %d: %w", i, err)
		}
	}
	return c, nil
}

func decodeRegister(op *rollcallv1.RegisterOperation) (r register, err error) {
	r = register{entries: make([]*Entry, len(op.Services)), fullSet: op.FullSet, force: op.Force}
	if r.fence, err = decodeFence(op.Fence); err != nil {
		return r, err
	}
	for i, raw := range op.Services {
		if r.entries[i], err = newEntry(raw); err != nil {
			return r, fmt.Errorf("service %d: %w", i, err)
		}
	}
	if len(op.Gone) > 0 {
		r.gone = make(map[Owner]struct{}, len(op.Gone))
	}
	for _, o := range op.Gone {
		owner, err := decodeOwner(o)
		if err != nil {
			return r, fmt.Errorf("gone: %w", err)
		}
		r.gone[owner] = struct{}{}
	}
	return r, nil
}

func decodeDeregister(op *rollcallv1.DeregisterOperation) (deregister, error) {
	f, err := decodeFence(op.Fence)
	return deregister{fence: f, ids: op.Ids, force: op.Force}, err
}

func decodeFence(f *rollcallv1.WriteFence) (fence, error) {
	owner, err := decodeOwner(f.GetOwner())
	if err != nil {
		return fence{}, err
	}
	body, err := decodeBodyHash(f.GetBody())
	return fence{owner: owner, incarnation: f.GetIncarnation(), seq: f.GetSeq(), epoch: f.GetEpoch(), body: body}, err
}

// decodeOwner refuses owners that String would not distinguish.
func decodeOwner(o *rollcallv1.Owner) (Owner, error) {
	owner := OwnerOf(o)
	named := owner.Kind == rollcallv1.OwnerKind_OWNER_KIND_GATEWAY
	if owner.Kind == rollcallv1.OwnerKind_OWNER_KIND_UNSPECIFIED || named != (owner.ID != "") {
		return owner, fmt.Errorf("%q is not an owner", owner)
	}
	return owner, nil
}

// rejectUnknownFields refuses a message that holds, at any depth, a field or enum value that this version does not
// support.
func rejectUnknownFields(m protoreflect.Message) (err error) {
	if len(m.GetUnknown()) > 0 {
		return fmt.Errorf("%s has a field that this version does not know", m.Descriptor().FullName())
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() != nil && f.IsList():
			for l, i := v.List(), 0; i < l.Len() && err == nil; i++ {
				err = rejectUnknownFields(l.Get(i).Message())
			}
		case f.Message() != nil:
			err = rejectUnknownFields(v.Message())
		case f.Enum() != nil && f.Enum().Values().ByNumber(v.Enum()) == nil:
			err = fmt.Errorf("%s is %d, which this version does not know", f.FullName(), v.Enum())
		}
		return err == nil
	})
	return err
}
