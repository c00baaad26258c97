package fsm

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func TestEntry_RoundTrip(t *testing.T) {
	t.Parallel()
	s := &rollcallv1.Service{Id: "a", Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{
		Url: "http://a:1", Node: "host-1", Labels: map[string]string{"x": "1", "y": "2", "z": "3"},
	}}
	raw, err := EncodeService(s)
	require.NoError(t, err)
	for range 20 {
		again, err := EncodeService(proto.CloneOf(s))
		require.NoError(t, err)
		require.Equal(t, raw, again, "equal services, equal bytes")
	}
	e, err := newEntry(raw)
	require.NoError(t, err)
	e.Owner, e.Version = gateway("edge-1"), 7
	require.Equal(t, "a", e.ID)
	require.Equal(t, "relayer", e.Kind)
	require.Equal(t, "http://a:1", e.URL())
	require.Equal(t, len(raw), e.Size())
	require.True(t, proto.Equal(s, e.Service()))
	require.True(t, proto.Equal(&rollcallv1.ServiceRecord{Service: s, Owner: e.Owner.Proto(), Version: 7}, e.Record()))
	e.Service().Id = "b"
	require.Equal(t, "a", e.Service().Id, "a copy of the caller's own")
}

func TestOwner_RoundTrip(t *testing.T) {
	t.Parallel()
	require.Equal(t, "gateway/edge-1", gateway("edge-1").String())
	require.Equal(t, "static", Static.String())
	require.Equal(t, "operator", Operator.String())
	require.Equal(t, Owner{}, OwnerOf(nil))
	for _, o := range []Owner{gateway("a"), Static, Operator} {
		require.Equal(t, o, OwnerOf(o.Proto()))
	}
}

// bytesField appends a length-delimited field.
func bytesField(b []byte, num protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), v)
}

// oddServices are encodings that EncodeService never produces.
var oddServices = []struct {
	name string
	raw  []byte
	ok   bool
}{
	{"empty", nil, false},
	{"no id", bytesField(nil, serviceKind, "relayer"), false},
	{"id only", bytesField(nil, serviceID, "a"), true},
	{"id twice", bytesField(bytesField(nil, serviceID, "a"), serviceID, "b"), true},
	{"id emptied", bytesField(bytesField(nil, serviceID, "a"), serviceID, ""), false},
	{"id is no UTF-8", bytesField(nil, serviceID, "\xff"), false},
	{"kind is no UTF-8", bytesField(bytesField(nil, serviceID, "a"), serviceKind, "\xff"), false},
	{"URL is no UTF-8", bytesField(bytesField(nil, serviceID, "a"), serviceWorkerRef, "\x0a\x01\xff"), false},
	{"node is no UTF-8", bytesField(bytesField(nil, serviceID, "a"), serviceWorkerRef, "\x12\x01\xff"), false},
	{"label is no UTF-8", bytesField(bytesField(nil, serviceID, "a"), serviceWorkerRef, "\x1a\x03\x12\x01\xff"), false},
	{"worker_ref cut off", bytesField(bytesField(nil, serviceID, "a"), serviceWorkerRef, "\x0a\x05x"), false},
	{"worker_ref in two parts", bytesField(bytesField(bytesField(nil, serviceID, "a"), serviceWorkerRef, "\x0a\x01x"), serviceWorkerRef, "\x12\x01n"), true},
	{"URL in two parts", bytesField(bytesField(bytesField(nil, serviceID, "a"), serviceWorkerRef, "\x0a\x01x"), serviceWorkerRef, "\x0a\x01y"), true},
	{"cut off", []byte{0x0a, 0x05, 'a'}, false},
	{"a field not known", bytesField(bytesField(nil, serviceID, "a"), 99, "\xff"), true},
	{"id as a number", append(bytesField(nil, serviceID, "a"), 0x08, 0x01), true},
	{"a group", append(bytesField(nil, serviceID, "a"), 0x0b, 0x0c), true},
	{"an open group", append(bytesField(nil, serviceID, "a"), 0x0b), false},
	{"field number 0", append(bytesField(nil, serviceID, "a"), 0x02, 0x00), false},
	{"field number too high", append(protowire.AppendVarint(bytesField(nil, serviceID, "a"), 1<<32), 0), false},
}

func TestNewEntry_OddServices_AgreesWithProto(t *testing.T) {
	t.Parallel()
	for _, tt := range oddServices {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.ok, agreesWithProto(t, tt.raw))
		})
	}
}

// agreesWithProto checks that newEntry accepts exactly the services that decode and have an id, and reads the same
// fields.
func agreesWithProto(t *testing.T, raw []byte) bool {
	var want rollcallv1.Service
	decodes := proto.Unmarshal(raw, &want) == nil
	e, err := newEntry(raw)
	require.Equal(t, decodes && want.Id != "", err == nil, "newEntry: %v", err)
	if err != nil {
		return false
	}
	require.Equal(t, want.Id, e.ID)
	require.Equal(t, want.Kind, e.Kind)
	require.Equal(t, want.GetWorkerRef().GetUrl(), e.URL())
	require.True(t, proto.Equal(&want, e.Service()))
	return true
}

func FuzzService(f *testing.F) {
	f.Add(service("a", 1))
	for _, tt := range oddServices {
		f.Add(tt.raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) { agreesWithProto(t, raw) })
}
