package fsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// sink receives a snapshot from Raft. write, if set, is called before each write.
type sink struct {
	bytes.Buffer
	write            func(n int) error
	writes           int
	closed, canceled bool
}

func (s *sink) Write(p []byte) (int, error) {
	s.writes++
	if s.write != nil {
		if err := s.write(s.writes); err != nil {
			return 0, err
		}
	}
	return s.Buffer.Write(p)
}
func (s *sink) Close() error  { s.closed = true; return nil }
func (s *sink) Cancel() error { s.canceled = true; return nil }
func (s *sink) ID() string    { return "1" }

// varied returns a directory with every kind of content.
func varied(t testing.TB) *replica {
	r := newReplica(t)
	r.do(opEstablish("n-2", 7))
	r.do(opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge1, 3, 1, 7), Services: services("a", "b", "d")}))
	r.do(opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge2, 2, 9, 7), Services: services("c", "a", "b")})) // refused
	r.do(opRegister(&rollcallv1.RegisterOperation{Fence: writer(Static, 7, 1, 7), Services: services("a", "s-0", "s-1"), FullSet: true}))
	cache, err := EncodeService(&rollcallv1.Service{Id: "cache", Kind: "cache", WorkerRef: &rollcallv1.WorkerRef{Url: "tcp://cache:1"}})
	require.NoError(t, err)
	r.do(opRegister(&rollcallv1.RegisterOperation{Fence: writer(Operator, 0, 0, 7), Services: [][]byte{cache}}))
	r.do(opDeregister(&rollcallv1.DeregisterOperation{Fence: writer(edge1, 3, 2, 7), Ids: []string{"d", "s-0"}})) // refused
	r.do(opDeregister(&rollcallv1.DeregisterOperation{Fence: hashed(edge1, 3, 3, 7, "d"), Ids: []string{"d"}}))
	r.do(importPart(7, "i-1", 0, edge1, "a", "b"), opStage(&rollcallv1.StageImportOperation{
		Epoch: 7, Import: "i-1", Part: 1, Owners: []*rollcallv1.ImportedOwner{{Owner: edge2.Proto(), Incarnation: 8}},
	}))
	return r
}

func TestSnapshot_RoundTrip(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*replica{
		"varied": varied(t), "empty": {Machine: New(), t: t}, "established": newReplica(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := snapshotOf(t, r.State())
			m := New()
			require.NoError(t, restore(m, file))
			checkInvariants(t, m)
			require.Equal(t, dump(r.State()), dump(m.State()))
			require.Equal(t, file, snapshotOf(t, m.State()))

			s, err := ReadSnapshot(bytes.NewReader(file))
			require.NoError(t, err)
			require.Equal(t, dump(r.State()), dump(s))
		})
	}
}

// Answers and fences must be the same after a restore.
func TestRestore_RepeatedWrites_GetTheSameAnswers(t *testing.T) {
	t.Parallel()
	r := varied(t)
	m := New()
	require.NoError(t, restore(m, snapshotOf(t, r.State())))
	restored := &replica{Machine: m, t: t, index: r.index, term: r.term}
	for _, op := range []*rollcallv1.Operation{
		opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge2, 2, 9, 7), Services: services("z")}),
		opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge1, 3, 2, 7), Services: services("z")}),
		opDeregister(&rollcallv1.DeregisterOperation{Fence: writer(edge1, 3, 3, 7)}),
		opDeregister(&rollcallv1.DeregisterOperation{Fence: hashed(edge1, 3, 3, 7, "d")}),
		opDeregister(&rollcallv1.DeregisterOperation{Fence: hashed(edge1, 3, 3, 7, "e")}), // refused
		opRegister(&rollcallv1.RegisterOperation{Fence: writer(Static, 7, 2, 7), FullSet: true}),
		opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge1, 2, 2, 7), Services: services("z")}),
		opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge1, 3, 4, 7), Services: services("z"), FullSet: true}),
	} {
		require.Equal(t, r.do(op), restored.do(op))
		require.Equal(t, dump(r.State()), dump(restored.State()))
	}
}

func TestPersist_WriteFails_CancelsTheSink(t *testing.T) {
	t.Parallel()
	r := varied(t)
	snap, err := r.Snapshot()
	require.NoError(t, err)
	defer snap.Release()
	s := new(sink)
	require.NoError(t, snap.Persist(s))
	require.True(t, s.closed && !s.canceled)
	require.Equal(t, snapshotOf(t, r.State()), s.Bytes())

	full := errors.New("no space left on device")
	s = &sink{write: func(int) error { return full }}
	require.ErrorIs(t, snap.Persist(s), full)
	require.True(t, s.canceled && !s.closed)
}

// A snapshot must hold its state, however much Apply changes while it streams.
func TestSnapshot_ApplyContinues_KeepsItsState(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	all := func(value string) (raws [][]byte) {
		for i := range 6_000 {
			raws = append(raws, service(fmt.Sprintf("a-%04d", i), value))
		}
		return raws
	}
	apply := func(index int) {
		ops := []*rollcallv1.Operation{
			opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge1, 1, uint64(index), 1), Services: all(fmt.Sprint(index))[index*100:], FullSet: true}),
			opRegister(&rollcallv1.RegisterOperation{Fence: writer(edge2, 1, uint64(index), 1), Services: services(fmt.Sprintf("b-%d", index))}),
			opRegister(&rollcallv1.RegisterOperation{Fence: writer(gateway(fmt.Sprintf("edge-%d", index)), 1, 1, 1), Services: services(fmt.Sprintf("c-%d", index))}),
		}
		r.Apply(&raft.Log{Index: uint64(index), Data: encode(ops...)})
	}
	apply(2)
	want := dump(r.State())
	snap, err := r.Snapshot()
	require.NoError(t, err)

	t.Run("between the writes", func(t *testing.T) {
		s := &sink{write: func(n int) error { apply(2 + n); return nil }}
		require.NoError(t, snap.Persist(s))
		require.Greater(t, s.writes, 1)
		got, err := ReadSnapshot(&s.Buffer)
		require.NoError(t, err)
		require.Equal(t, want, dump(got))
	})
	t.Run("at the same time", func(t *testing.T) {
		index := int(r.State().Index())
		begun, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			<-begun
			for i := range 5 {
				apply(index + 1 + i)
			}
		}()
		s := &sink{write: func(n int) error {
			if n == 1 {
				close(begun)
			}
			return nil
		}}
		require.NoError(t, snap.Persist(s))
		<-done
		got, err := ReadSnapshot(&s.Buffer)
		require.NoError(t, err)
		require.Equal(t, want, dump(got))
	})
	checkInvariants(t, r.Machine)
}

// readerFunc is an io.Reader that runs a function on each read.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// While a snapshot is read, and after a failed read, the directory must not change.
func TestRestore_ReadFails_ChangesNothing(t *testing.T) {
	t.Parallel()
	file := snapshotOf(t, varied(t).State())
	r := newReplica(t)
	r.register(edge1, 1, "old")
	before := r.State()
	_, feed := r.Watch()

	torn := errors.New("input/output error")
	for _, err := range []error{torn, io.ErrUnexpectedEOF} {
		rest := file[:len(file)-1]
		got := r.Restore(io.NopCloser(readerFunc(func(p []byte) (int, error) {
			require.Same(t, before, r.State())
			if len(rest) == 0 {
				return 0, err
			}
			n := copy(p[:1], rest)
			rest = rest[n:]
			return n, nil
		})))
		require.ErrorIs(t, got, err)
		_, ok := errors.AsType[*DecodeError](got)
		require.True(t, ok)
		require.ErrorContains(t, got, "directory snapshot cannot be read: ")
	}
	require.Same(t, before, r.State())
	requireIdle(t, feed)
	r.register(edge1, 2, "new")
	c, err := feed.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, "new", c.Changes[0].After.ID)
	require.Equal(t, []string{"new=gateway/edge-1", "old=gateway/edge-1"}, r.owners())
}

// requireRefused restores an invalid snapshot and checks that the directory does not change.
func requireRefused(t *testing.T, r *replica, file []byte, says string) {
	t.Helper()
	before := r.State()
	err := restore(r.Machine, file)
	require.Error(t, err)
	_, ok := errors.AsType[*DecodeError](err)
	require.True(t, ok, "%T", err)
	require.ErrorContains(t, err, says)
	require.Same(t, before, r.State())

	_, copied := CopySnapshot(io.Discard, bytes.NewReader(file), 0, "")
	require.Equal(t, err, copied)
}

// A copy must hold the original's content, except for an epoch that must not decrease.
func TestCopySnapshot_HigherEpoch_RaisesOnlyTheEpoch(t *testing.T) {
	t.Parallel()
	s := varied(t).State()
	file := snapshotOf(t, s)
	for epoch, want := range map[uint64]string{0: "n-2", 6: "n-2", 7: "n-2", 8: "n-9"} {
		var dst bytes.Buffer
		info, err := CopySnapshot(&dst, bytes.NewReader(file), epoch, "n-9")
		require.NoError(t, err)
		require.Equal(t, SnapshotInfo{Cluster: s.Cluster(), Epoch: max(epoch, 7), Index: s.Index(), Services: s.Len()}, info)
		got, err := ReadSnapshot(&dst)
		require.NoError(t, err)
		require.Equal(t, want, got.Leader())
		raised := *s
		raised.epoch, raised.leader = info.Epoch, want
		require.Equal(t, dump(&raised), dump(got))
	}

	full := &sink{write: func(int) error { return errors.New("no space left on device") }}
	_, err := CopySnapshot(full, bytes.NewReader(file), 0, "")
	require.ErrorContains(t, err, "no space left on device")
	_, damaged := errors.AsType[*DecodeError](err)
	require.False(t, damaged, "the snapshot is not to blame")
}

func TestRestore_DamagedSnapshot_IsRefused(t *testing.T) {
	t.Parallel()
	file := snapshotOf(t, varied(t).State())
	r := newReplica(t)
	_, feed := r.Watch()
	for i := range file {
		requireRefused(t, r, file[:i], "")
		for bit := range 8 {
			if testing.Short() && bit != i%8 {
				continue
			}
			damaged := slices.Clone(file)
			damaged[i] ^= 1 << bit
			requireRefused(t, r, damaged, "")
		}
	}
	for i := 0; i < len(file); i += 7 {
		requireRefused(t, r, slices.Concat(file[:i], file[i+1:]), "")
		requireRefused(t, r, slices.Concat(file[:i], []byte{0}, file[i:]), "")
	}
	requireRefused(t, r, append(slices.Clone(file), 0), "bytes after the trailer")
	requireRefused(t, r, slices.Concat(file, file), "bytes after the trailer")
	requireRefused(t, r, []byte("PK\x03\x04, an archive of something else"), "header: ")
	requireRefused(t, r, nil, "unexpected EOF")
	requireRefused(t, r, binary.AppendUvarint(nil, 1<<40), "record of 1099511627776 bytes")
	requireIdle(t, feed)
	checkInvariants(t, r.Machine)
	require.NoError(t, restore(r.Machine, file), "the machine is as good as ever")
	_, err := ReadSnapshot(bytes.NewReader(file[1:]))
	require.Error(t, err)
}

// frame writes records as a snapshot and fills in the trailer's checksum, if there is a trailer.
func frame(recs []*rollcallv1.SnapshotRecord) (file []byte) {
	for _, rec := range recs {
		if t := rec.GetTrailer(); t != nil {
			t.Crc += crc32.Checksum(file, castagnoli)
		}
		data, err := proto.Marshal(rec)
		if err != nil {
			panic(err)
		}
		file = append(binary.AppendUvarint(file, uint64(len(data))), data...)
	}
	return file
}

// records splits a snapshot into records. The trailer's checksum is 0; frame fills it in.
func records(t testing.TB, file []byte) (recs []*rollcallv1.SnapshotRecord) {
	for len(file) > 0 {
		size, n := binary.Uvarint(file)
		rec := new(rollcallv1.SnapshotRecord)
		require.NoError(t, proto.Unmarshal(file[n:n+int(size)], rec))
		if t := rec.GetTrailer(); t != nil {
			t.Crc = 0
		}
		recs, file = append(recs, rec), file[n+int(size):]
	}
	return recs
}

// Invalid snapshots with a correct checksum, written by another version or edited by hand, must be refused.
func TestRestore_InvalidRecords_AreRefused(t *testing.T) {
	t.Parallel()
	const header, owner, entry = 0, 1, 5 // the first of each
	good := snapshotOf(t, varied(t).State())
	require.Equal(t, good, frame(records(t, good)))
	last := len(records(t, good)) - 1

	type recs = []*rollcallv1.SnapshotRecord
	tests := []struct {
		name string
		edit func(recs) recs
		says string
	}{
		{"no header", func(r recs) recs { return r[1:] }, "is this a snapshot of rollcall?"},
		{"no trailer", func(r recs) recs { return r[:last] }, "unexpected EOF"},
		{"two headers", func(r recs) recs { return slices.Insert(r, 1, r[0]) }, "record out of place"},
		{"empty record", func(r recs) recs { return slices.Insert(r, 1, &rollcallv1.SnapshotRecord{}) }, "record out of place"},
		{"format 0", func(r recs) recs { r[header].GetHeader().Format = 0; return r }, "format 0 is not known"},
		{"format 2", func(r recs) recs { r[header].GetHeader().Format = 2; return r }, "format 2 is not known"},
		{"owners swapped", func(r recs) recs { r[owner], r[owner+1] = r[owner+1], r[owner]; return r }, "out of order"},
		{"owners renumbered", func(r recs) recs { r[owner].GetOwner().Number = 7; return r }, "out of order"},
		{"owner twice", func(r recs) recs {
			r[owner+1].GetOwner().Owner = r[owner].GetOwner().Owner
			return r
		}, "out of order"},
		{"owner after an entry", func(r recs) recs { r[entry-1], r[entry] = r[entry], r[entry-1]; return r }, "owner static is out of order"},
		{"owner without a name", func(r recs) recs { r[owner].GetOwner().Owner = nil; return r }, "is not an owner"},
		{"owner of an unknown kind", func(r recs) recs { r[owner].GetOwner().Owner.Kind = 9; return r }, "does not know"},
		{"conflict without an owner", func(r recs) recs {
			r[owner+1].GetOwner().Answer.Conflicts[0].Owner = nil
			return r
		}, "is not an owner"},
		{"entries swapped", func(r recs) recs { r[entry], r[entry+1] = r[entry+1], r[entry]; return r }, "a after b: out of order"},
		{"entry twice", func(r recs) recs { return slices.Insert(r, entry, r[entry]) }, "a after a: out of order"},
		{"entry before owners", func(r recs) recs { r[owner], r[entry] = r[entry], r[owner]; return r }, "not in the snapshot"},
		{"entry without an id", func(r recs) recs { r[entry].GetEntry().Service = nil; return r }, "no id"},
		{"entry that does not decode", func(r recs) recs {
			r[entry].GetEntry().Service = bytesField(service("a"), serviceWorkerRef, "\xff")
			return r
		}, "unexpected EOF"},
		{"entry of a missing owner", func(r recs) recs { r[entry].GetEntry().Owner = 4; return r }, "a has owner 4, who is not in the snapshot"},
		{"entry missing", func(r recs) recs { return slices.Delete(r, entry, entry+1) }, "the trailer counts 4 owners and 5 entries"},
		{"owner missing", func(r recs) recs {
			r[last].GetTrailer().Owners = 5
			return r
		}, "the trailer counts 5 owners"},
		{"cut body hash", func(r recs) recs { r[owner].GetOwner().Body = []byte{1}; return r }, "owner gateway/edge-1: body hash of 1 bytes"},
		{"checksum", func(r recs) recs { r[last].GetTrailer().Crc = 1; return r }, "checksum differs"},
	}
	// Each message of a snapshot gets one unknown field.
	for i, rec := range records(t, good) {
		count := 0
		messages(rec.ProtoReflect(), func(protoreflect.Message) { count++ })
		for n := range count {
			tests = append(tests, struct {
				name string
				edit func(recs) recs
				says string
			}{fmt.Sprintf("unknown field in message %d of record %d", n, i), func(r recs) recs {
				at := 0
				messages(r[i].ProtoReflect(), func(m protoreflect.Message) {
					if at == n {
						newer(m.Interface())
					}
					at++
				})
				return r
			}, "has a field that this version does not know"})
		}
	}
	require.Greater(t, len(tests), 40)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newReplica(t)
			r.register(edge1, 1, "old")
			requireRefused(t, r, frame(tt.edit(records(t, good))), tt.says)
		})
	}
}

func TestWriteSnapshot_StateNotReadableBack_IsRefused(t *testing.T) {
	t.Parallel()
	r := varied(t)
	s := *r.State()
	s.owners = New().State().owners
	require.ErrorContains(t, s.WriteSnapshot(io.Discard), "a is owned by gateway/edge-1, whom the directory does not know")

	r.Apply(&raft.Log{Index: r.index + 1, Data: encode(opRegister(&rollcallv1.RegisterOperation{
		Fence: writer(Operator, 0, 0, 7), Services: [][]byte{bytesField(service("big"), 99, string(make([]byte, maxRecord)))},
	}))})
	require.ErrorContains(t, r.State().WriteSnapshot(io.Discard), "could not be read back")
}
