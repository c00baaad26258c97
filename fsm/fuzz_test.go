package fsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// FuzzCommand applies arbitrary bytes as a log entry. Two replicas must apply all of it identically, or stop with a
// *DecodeError and apply none of it.
func FuzzCommand(f *testing.F) {
	data, err := proto.Marshal(everything())
	require.NoError(f, err)
	f.Add(data)
	for _, l := range goldenLog() {
		f.Add(l.Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		one, other := varied(t), varied(t)
		before := one.State()
		l := &raft.Log{Index: 100, Term: 5, Data: data}
		err := applyOrDecodeError(t, one.Machine, l)
		checkInvariants(t, one.Machine)
		require.Equal(t, err, applyOrDecodeError(t, other.Machine, l))
		if err != nil {
			require.Same(t, before, one.State())
			return
		}
		want := dump(one.State())
		require.Equal(t, want, dump(other.State()))
		require.Equal(t, uint64(100), one.State().Index())
		require.GreaterOrEqual(t, one.State().Epoch(), before.Epoch())
		require.NoError(t, restore(other.Machine, snapshotOf(t, one.State())))
		require.Equal(t, want, dump(other.State()))
		for e := range one.State().All() {
			e.Record()
		}
	})
}

// FuzzSnapshot restores arbitrary bytes. The snapshot must replace the whole directory or be refused without a change.
// With mend, the checksum and counts are corrected so that the records are reached.
func FuzzSnapshot(f *testing.F) {
	good := snapshotOf(f, varied(f).State())
	f.Add(good, false)
	f.Add(good, true)
	f.Add(good[:len(good)/2], true)
	f.Fuzz(func(t *testing.T, file []byte, mend bool) {
		if mend {
			file = mended(file)
		}
		r := newReplica(t)
		r.register(edge1, 1, "old")
		before := r.State()
		err := restore(r.Machine, file)
		checkInvariants(t, r.Machine)
		_, copied := CopySnapshot(io.Discard, bytes.NewReader(file), 0, "")
		require.Equal(t, err, copied)
		if err != nil {
			_, ok := errors.AsType[*DecodeError](err)
			require.True(t, ok)
			require.Same(t, before, r.State())
			return
		}
		again, err := ReadSnapshot(bytes.NewReader(snapshotOf(t, r.State())))
		require.NoError(t, err)
		require.Equal(t, dump(r.State()), dump(again))
		for e := range again.All() {
			e.Record()
		}
	})
}

// mended keeps the records that decode and adds a matching trailer.
func mended(file []byte) []byte {
	var recs []*rollcallv1.SnapshotRecord
	var trailer rollcallv1.SnapshotTrailer
	for len(file) > 0 {
		size, n := binary.Uvarint(file)
		if n <= 0 || size > uint64(len(file)-n) {
			break
		}
		rec := new(rollcallv1.SnapshotRecord)
		if proto.Unmarshal(file[n:n+int(size)], rec) != nil {
			break
		}
		file = file[n+int(size):]
		switch rec.Record.(type) {
		case *rollcallv1.SnapshotRecord_Owner:
			trailer.Owners++
		case *rollcallv1.SnapshotRecord_Entry:
			trailer.Entries++
		case *rollcallv1.SnapshotRecord_Trailer:
			continue
		}
		recs = append(recs, rec)
	}
	return frame(append(recs, &rollcallv1.SnapshotRecord{Record: &rollcallv1.SnapshotRecord_Trailer{Trailer: &trailer}}))
}
