package fsm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	snapshotFormat = 1
	// maxRecord bounds a snapshot record: an owner's answer names at most 10,000 conflicts.
	maxRecord = 4 << 20
	ioBuffer  = 256 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// snapshot is a state that Raft is to write to disk or to a follower.
type snapshot struct{ state *State }

func (s *snapshot) Release() {}

// Persist streams the state; it runs beside Apply.
func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	if err := s.state.WriteSnapshot(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// snapshotWriter frames records and sums what it wrote.
type snapshotWriter struct {
	w   *bufio.Writer
	sum hash.Hash32
	buf []byte
}

func (w *snapshotWriter) write(rec *rollcallv1.SnapshotRecord) error {
	opts := proto.MarshalOptions{}
	w.buf = binary.AppendUvarint(w.buf[:0], uint64(opts.Size(rec)))
	var err error
	if w.buf, err = opts.MarshalAppend(w.buf, rec); err != nil {
		return err
	}
	if rec.GetTrailer() == nil {
		w.sum.Write(w.buf)
	}
	_, err = w.w.Write(w.buf)
	return err
}

// WriteSnapshot writes the state in the snapshot format of log.proto.
func (s *State) WriteSnapshot(dst io.Writer) error {
	w := &snapshotWriter{w: bufio.NewWriterSize(dst, ioBuffer), sum: crc32.New(castagnoli)}
	err := w.write(&rollcallv1.SnapshotRecord{Record: &rollcallv1.SnapshotRecord_Header{Header: &rollcallv1.SnapshotHeader{
		Format: snapshotFormat, Cluster: s.cluster, Epoch: s.epoch, Leader: s.leader, Index: s.index,
	}}})
	if err != nil {
		return fmt.Errorf("write snapshot header: %w", err)
	}

	numbers := make(map[Owner]uint32)
	s.owners.Scan(func(_ string, os *ownerState) bool {
		n := uint32(len(numbers))
		numbers[os.owner] = n
		err = w.write(&rollcallv1.SnapshotRecord{Record: &rollcallv1.SnapshotRecord_Owner{Owner: &rollcallv1.SnapshotOwner{
			Number: n, Owner: os.owner.Proto(), Incarnation: os.incarnation, Seq: os.seq, Answer: os.answer.proto(),
		}}})
		return err == nil
	})
	if err != nil {
		return fmt.Errorf("write snapshot owners: %w", err)
	}

	entry := new(rollcallv1.SnapshotEntry)
	rec := &rollcallv1.SnapshotRecord{Record: &rollcallv1.SnapshotRecord_Entry{Entry: entry}}
	for e := range s.All() {
		entry.Service, entry.Owner, entry.Version = e.raw, numbers[e.Owner], e.Version
		if err := w.write(rec); err != nil {
			return fmt.Errorf("write snapshot entries: %w", err)
		}
	}

	err = w.write(&rollcallv1.SnapshotRecord{Record: &rollcallv1.SnapshotRecord_Trailer{Trailer: &rollcallv1.SnapshotTrailer{
		Owners: uint64(len(numbers)), Entries: uint64(s.Len()), Crc: w.sum.Sum32(),
	}}})
	if err != nil {
		return fmt.Errorf("write snapshot trailer: %w", err)
	}
	if err := w.w.Flush(); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

// ReadSnapshot reads and verifies a whole snapshot, so that a caller knows what is in it before restoring it.
func ReadSnapshot(r io.Reader) (*State, error) {
	d, err := readSnapshot(r)
	if err != nil {
		return nil, &DecodeError{Err: err}
	}
	return d.publish(), nil
}

// snapshotReader undoes snapshotWriter.
type snapshotReader struct {
	r   *bufio.Reader
	sum hash.Hash32
	buf []byte
}

func (r *snapshotReader) next(rec *rollcallv1.SnapshotRecord) error {
	size, err := binary.ReadUvarint(r.r)
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF // the trailer is the only good end
	}
	if err != nil {
		return err
	}
	if size > maxRecord {
		return fmt.Errorf("record of %d bytes", size)
	}
	r.buf = binary.AppendUvarint(r.buf[:0], size)
	head := len(r.buf)
	r.buf = append(r.buf, make([]byte, size)...)
	if _, err := io.ReadFull(r.r, r.buf[head:]); err != nil {
		return io.ErrUnexpectedEOF
	}
	if err := proto.Unmarshal(r.buf[head:], rec); err != nil {
		return err
	}
	if rec.GetTrailer() == nil {
		r.sum.Write(r.buf)
	}
	return known(rec)
}

func readSnapshot(src io.Reader) (draft, error) {
	r := &snapshotReader{r: bufio.NewReaderSize(src, ioBuffer), sum: crc32.New(castagnoli)}
	d := newDraft()
	var rec rollcallv1.SnapshotRecord
	if err := r.next(&rec); err != nil {
		return draft{}, fmt.Errorf("header: %w", err)
	}
	h := rec.GetHeader()
	if h == nil {
		return draft{}, errors.New("it does not begin with a header; is this a snapshot of rollcall?")
	}
	if h.Format != snapshotFormat || known(h) != nil {
		return draft{}, fmt.Errorf("format %d is not known to this version", h.Format)
	}
	d.cluster, d.epoch, d.leader, d.index = h.Cluster, h.Epoch, h.Leader, h.Index

	var owners []ownerState
	for {
		if err := r.next(&rec); err != nil {
			return draft{}, fmt.Errorf("after %d owners and %d entries: %w", len(owners), d.entries.Len(), err)
		}
		switch k := rec.Record.(type) {
		case *rollcallv1.SnapshotRecord_Owner:
			os, err := readOwner(k.Owner, len(owners))
			if err != nil {
				return draft{}, err
			}
			owners = append(owners, os)
		case *rollcallv1.SnapshotRecord_Entry:
			if err := d.readEntry(k.Entry, owners); err != nil {
				return draft{}, fmt.Errorf("entry %d: %w", d.entries.Len(), err)
			}
		case *rollcallv1.SnapshotRecord_Trailer:
			if err := d.finish(k.Trailer, owners, r); err != nil {
				return draft{}, err
			}
			return d, nil
		default:
			return draft{}, errors.New("record of a kind that this version does not know")
		}
	}
}

func readOwner(o *rollcallv1.SnapshotOwner, number int) (ownerState, error) {
	if err := known(o, o.GetOwner(), o.GetAnswer()); err != nil {
		return ownerState{}, err
	}
	if o.GetOwner() == nil || int(o.Number) != number {
		return ownerState{}, fmt.Errorf("owner %d: out of order or nameless", number)
	}
	return ownerState{owner: OwnerOf(o.Owner), incarnation: o.Incarnation, seq: o.Seq, answer: resultOf(o.Answer)}, nil
}

func (d *draft) readEntry(se *rollcallv1.SnapshotEntry, owners []ownerState) error {
	if err := known(se); err != nil {
		return err
	}
	if int64(se.Owner) >= int64(len(owners)) {
		return fmt.Errorf("owner %d is not in the snapshot", se.Owner)
	}
	e, err := newEntry(se.Service, owners[se.Owner].owner, se.Version)
	if err != nil {
		return err
	}
	if last, _, ok := d.entries.Max(); ok && last >= e.ID {
		return fmt.Errorf("%q after %q: not in order", e.ID, last)
	}
	d.set(e)
	return nil
}

// finish checks what was read against the trailer.
func (d *draft) finish(t *rollcallv1.SnapshotTrailer, owners []ownerState, r *snapshotReader) error {
	switch {
	case known(t) != nil:
		return known(t)
	case t.Crc != r.sum.Sum32():
		return errors.New("checksum differs: the snapshot is damaged")
	case t.Owners != uint64(len(owners)) || t.Entries != uint64(d.Len()):
		return fmt.Errorf("it holds %d owners and %d entries, its trailer says %d and %d", len(owners), d.Len(), t.Owners, t.Entries)
	}
	if _, err := r.r.ReadByte(); !errors.Is(err, io.EOF) {
		return errors.New("bytes after the trailer")
	}
	for _, os := range owners {
		d.setOwner(os)
	}
	return nil
}

func (r Result) proto() *rollcallv1.Answer {
	a := &rollcallv1.Answer{
		Epoch: r.Epoch, Index: r.Index,
		Registered: uint32(r.Registered), Unchanged: uint32(r.Unchanged), Removed: uint32(r.Removed), Yielded: uint32(r.Yielded),
	}
	// Of the refusals only conflicts are kept: the others do not take the owner's seq.
	var ce *ConflictError
	if errors.As(r.Err, &ce) {
		a.Deregister = ce.Deregister
		for _, c := range ce.Conflicts {
			a.Conflicts = append(a.Conflicts, &rollcallv1.Conflict{Index: uint32(c.Index), Id: c.ID, Owner: c.Owner.Proto()})
		}
	}
	return a
}

func resultOf(a *rollcallv1.Answer) Result {
	r := Result{Answer: Answer{
		Epoch: a.GetEpoch(), Index: a.GetIndex(),
		Registered: int(a.GetRegistered()), Unchanged: int(a.GetUnchanged()), Removed: int(a.GetRemoved()), Yielded: int(a.GetYielded()),
	}}
	if len(a.GetConflicts()) > 0 {
		ce := &ConflictError{Deregister: a.Deregister}
		for _, c := range a.Conflicts {
			ce.Conflicts = append(ce.Conflicts, Conflict{Index: int(c.Index), ID: c.Id, Owner: OwnerOf(c.Owner)})
		}
		r.Err = ce
	}
	return r
}
