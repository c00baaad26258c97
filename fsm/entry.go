package fsm

import (
	"cmp"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Owner is who may change or remove an entry. It is comparable.
type Owner struct {
	Kind rollcallv1.OwnerKind
	ID   string
}

// The owners that exist once.
var (
	Static   = Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_STATIC}
	Operator = Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_OPERATOR}
)

// OwnerOf converts from the wire; nil gives the zero Owner.
func OwnerOf(o *rollcallv1.Owner) Owner { return Owner{Kind: o.GetKind(), ID: o.GetId()} }

// Proto converts to the wire.
func (o Owner) Proto() *rollcallv1.Owner { return &rollcallv1.Owner{Kind: o.Kind, Id: o.ID} }

// String gives "gateway/edge-1", "static" or "operator".
func (o Owner) String() string {
	switch o.Kind {
	case rollcallv1.OwnerKind_OWNER_KIND_GATEWAY:
		return "gateway/" + o.ID
	case rollcallv1.OwnerKind_OWNER_KIND_STATIC:
		return "static"
	case rollcallv1.OwnerKind_OWNER_KIND_OPERATOR:
		return "operator"
	default:
		return fmt.Sprintf("unspecified/%s", o.ID)
	}
}

func (o Owner) compare(p Owner) int {
	return cmp.Or(cmp.Compare(o.Kind, p.Kind), cmp.Compare(o.ID, p.ID))
}

// Entry is one service in the directory. It is immutable and shared between states.
type Entry struct {
	ID    string
	Kind  string
	Owner Owner
	// Version grows with each change of the entry. Only the order of versions means anything.
	Version uint64

	raw []byte // the encoded Service, the same bytes on every replica
}

// Service decodes a copy that the caller may change.
func (e *Entry) Service() *rollcallv1.Service {
	s := new(rollcallv1.Service)
	if err := proto.Unmarshal(e.raw, s); err != nil {
		// Apply and Restore have read the same bytes before.
		panic(fmt.Sprintf("fsm: entry %s: %v", e.ID, err))
	}
	return s
}

// Record is the entry as the wire shows it.
func (e *Entry) Record() *rollcallv1.ServiceRecord {
	return &rollcallv1.ServiceRecord{Service: e.Service(), Owner: e.Owner.Proto(), Version: e.Version}
}

// Size is the length of the encoded service in bytes.
func (e *Entry) Size() int { return len(e.raw) }

// URL is the service's worker_ref.url.
func (e *Entry) URL() string {
	const workerRefField, urlField = 3, 1
	return string(lastBytes(lastBytes(e.raw, workerRefField), urlField))
}

// lastBytes finds the last occurrence of a length-delimited field, which is the one that counts in protobuf.
// The message is known to be well formed.
func lastBytes(msg []byte, field protowire.Number) (value []byte) {
	for len(msg) > 0 {
		num, typ, n := protowire.ConsumeTag(msg)
		if n < 0 {
			return value
		}
		msg = msg[n:]
		if num == field && typ == protowire.BytesType {
			v, n := protowire.ConsumeBytes(msg)
			if n < 0 {
				return value
			}
			value, msg = v, msg[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(num, typ, msg); n < 0 {
			return value
		}
		msg = msg[n:]
	}
	return value
}

// newEntry checks the encoded service and reads from it what the directory is ordered and counted by.
func newEntry(raw []byte, owner Owner, version uint64) (*Entry, error) {
	e := &Entry{Owner: owner, Version: version, raw: raw}
	for rest := raw; len(rest) > 0; {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return nil, fmt.Errorf("service: %w", protowire.ParseError(n))
		}
		m := protowire.ConsumeFieldValue(num, typ, rest[n:])
		if m < 0 {
			return nil, fmt.Errorf("service field %d: %w", num, protowire.ParseError(m))
		}
		if typ == protowire.BytesType && (num == 1 || num == 2) {
			v, _ := protowire.ConsumeBytes(rest[n:])
			if num == 1 {
				e.ID = string(v)
			} else {
				e.Kind = string(v)
			}
		}
		rest = rest[n+m:]
	}
	if e.ID == "" {
		return nil, fmt.Errorf("service has no id")
	}
	return e, nil
}

// EncodeService gives the bytes by which the directory stores and compares a service: equal services give
// equal bytes. They are made once, by the leader, and replicated as they are.
func EncodeService(s *rollcallv1.Service) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(s)
}
