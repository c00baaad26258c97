package fsm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"slices"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	snapshotFormat = 1
	// maxRecord bounds a snapshot record. A service fits in a call, and an owner's answer holds few conflicts.
	maxRecord = 4 << 20
	ioBuffer  = 256 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// snapshot is a state that Raft writes to disk or sends to a follower.
type snapshot struct{ state *State }

func (s *snapshot) Release() {}

// Persist streams the state. It runs concurrently with Apply.
func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	if err := s.state.WriteSnapshot(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// snapshotWriter frames records and computes their checksum.
type snapshotWriter struct {
	w   *bufio.Writer
	sum hash.Hash32
	buf []byte
}

func (w *snapshotWriter) write(rec *rollcallv1.SnapshotRecord) error {
	size := proto.Size(rec)
	if size > maxRecord {
		return fmt.Errorf("record of %d bytes could not be read back", size)
	}
	w.buf = binary.AppendUvarint(w.buf[:0], uint64(size))
	var err error
	if w.buf, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(w.buf, rec); err != nil {
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
			Number: n, Owner: os.owner.Proto(), Incarnation: os.incarnation, Seq: os.seq, Answer: os.answer.proto(), Body: os.body.encoded(),
		}}})
		return err == nil
	})
	if err != nil {
		return fmt.Errorf("write snapshot owners: %w", err)
	}

	entry := new(rollcallv1.SnapshotEntry)
	rec := &rollcallv1.SnapshotRecord{Record: &rollcallv1.SnapshotRecord_Entry{Entry: entry}}
	for e := range s.All() {
		number, ok := numbers[e.Owner]
		if !ok {
			return fmt.Errorf("write snapshot: %s is owned by %s, whom the directory does not know", e.ID, e.Owner)
		}
		entry.Service, entry.Owner, entry.Version = e.raw, number, e.Version
		if err := w.write(rec); err != nil {
			return fmt.Errorf("write snapshot entries: %w", err)
		}
	}

	if s.staged != nil { // the entry that applies it may follow
		for _, part := range s.staged.parts {
			if err := w.write(&rollcallv1.SnapshotRecord{Record: &rollcallv1.SnapshotRecord_Staged{Staged: part.proto()}}); err != nil {
				return fmt.Errorf("write snapshot of an import: %w", err)
			}
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

// ReadSnapshot reads and verifies a whole snapshot, so that a caller can inspect it before it restores it.
func ReadSnapshot(r io.Reader) (*State, error) {
	d, err := readSnapshot(r)
	if err != nil {
		return nil, &DecodeError{Err: err}
	}
	return d.publish(), nil
}

// SnapshotInfo is the metadata of a snapshot.
type SnapshotInfo struct {
	Cluster string
	Epoch   uint64
	// Index is the Raft index of the last command in it.
	Index    uint64
	Services int
}

// CopySnapshot copies a snapshot and verifies it as ReadSnapshot does, without holding it in memory. If the snapshot's
// epoch is below the given one, the copy gets the given epoch and leader, the node that opened it. A cluster that
// restores the copy continues from that epoch. After a failure the bytes written so far are useless. CopySnapshot
// returns a *DecodeError if src cannot be read or is not a valid snapshot, and otherwise the error of dst.
func CopySnapshot(dst io.Writer, src io.Reader, epoch uint64, leader string) (SnapshotInfo, error) {
	var (
		info    SnapshotInfo
		problem error // of dst
	)
	w := &snapshotWriter{w: bufio.NewWriterSize(dst, ioBuffer), sum: crc32.New(castagnoli)}
	r := newSnapshotReader(src, nil)
	err := r.read(func(rec *rollcallv1.SnapshotRecord) error {
		switch k := rec.Record.(type) {
		case *rollcallv1.SnapshotRecord_Header:
			if k.Header.Epoch < epoch {
				k.Header.Epoch, k.Header.Leader = epoch, leader
			}
			info = SnapshotInfo{Cluster: k.Header.Cluster, Epoch: k.Header.Epoch, Index: k.Header.Index}
		case *rollcallv1.SnapshotRecord_Trailer:
			info.Services = r.entries
			k.Trailer.Crc = w.sum.Sum32()
		}
		problem = w.write(rec)
		return problem
	})
	if problem != nil {
		return SnapshotInfo{}, fmt.Errorf("write snapshot: %w", problem)
	}
	if err != nil {
		return SnapshotInfo{}, &DecodeError{Err: err}
	}
	if err := w.w.Flush(); err != nil {
		return SnapshotInfo{}, fmt.Errorf("write snapshot: %w", err)
	}
	return info, nil
}

// snapshotReader decodes the output of snapshotWriter.
type snapshotReader struct {
	r   *bufio.Reader
	sum hash.Hash32
	buf []byte

	d       *builder // built from the records; nil if they are only verified
	owners  []ownerState
	entries int
	lastID  string
	staged  *stagedImport
}

func newSnapshotReader(src io.Reader, d *builder) *snapshotReader {
	return &snapshotReader{r: bufio.NewReaderSize(src, ioBuffer), sum: crc32.New(castagnoli), d: d}
}

func readSnapshot(src io.Reader) (builder, error) {
	d := newDraft()
	if err := newSnapshotReader(src, &d).read(func(*rollcallv1.SnapshotRecord) error { return nil }); err != nil {
		return builder{}, err
	}
	return d, nil
}

// read reads and verifies a snapshot. It passes every record that is valid so far to visit.
func (r *snapshotReader) read(visit func(*rollcallv1.SnapshotRecord) error) error {
	rec, err := r.readHeader()
	if err != nil {
		return fmt.Errorf("header: %w", err)
	}
	if err := visit(rec); err != nil {
		return err
	}
	for done := false; !done; {
		if rec, done, err = r.readRecord(); err != nil {
			return fmt.Errorf("after %d owners and %d entries: %w", len(r.owners), r.entries, err)
		}
		if err := visit(rec); err != nil {
			return err
		}
	}
	return nil
}

// next reads one record, and adds it to the checksum unless it is the trailer.
func (r *snapshotReader) next() (*rollcallv1.SnapshotRecord, error) {
	size, err := binary.ReadUvarint(r.r)
	if err != nil {
		return nil, truncated(err)
	}
	if size > maxRecord {
		return nil, fmt.Errorf("record of %d bytes", size)
	}
	r.buf = binary.AppendUvarint(r.buf[:0], size)
	head := len(r.buf)
	r.buf = slices.Grow(r.buf, int(size))[:head+int(size)]
	if _, err := io.ReadFull(r.r, r.buf[head:]); err != nil {
		return nil, truncated(err)
	}
	rec := new(rollcallv1.SnapshotRecord)
	if err := proto.Unmarshal(r.buf[head:], rec); err != nil {
		return nil, err
	}
	if rec.GetTrailer() == nil {
		r.sum.Write(r.buf)
	}
	return rec, rejectUnknownFields(rec.ProtoReflect())
}

// truncated replaces io.EOF, because a valid snapshot ends with its trailer.
func truncated(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (r *snapshotReader) readHeader() (*rollcallv1.SnapshotRecord, error) {
	rec, err := r.next()
	if err != nil {
		return nil, err
	}
	h := rec.GetHeader()
	if h == nil {
		return nil, errors.New("there is none; is this a snapshot of rollcall?")
	}
	if h.Format != snapshotFormat {
		return nil, fmt.Errorf("format %d is not known to this version", h.Format)
	}
	if r.d != nil {
		r.d.cluster, r.d.epoch, r.d.leader, r.d.index = h.Cluster, h.Epoch, h.Leader, h.Index
	}
	return rec, nil
}

func (r *snapshotReader) readRecord() (rec *rollcallv1.SnapshotRecord, done bool, err error) {
	if rec, err = r.next(); err != nil {
		return nil, false, err
	}
	switch k := rec.Record.(type) {
	case *rollcallv1.SnapshotRecord_Owner:
		return rec, false, r.addOwner(k.Owner)
	case *rollcallv1.SnapshotRecord_Entry:
		return rec, false, r.addEntry(k.Entry)
	case *rollcallv1.SnapshotRecord_Staged:
		return rec, false, r.addStaged(k.Staged)
	case *rollcallv1.SnapshotRecord_Trailer:
		return rec, true, r.finish(k.Trailer)
	default:
		return nil, false, errors.New("record out of place")
	}
}

func (r *snapshotReader) addOwner(o *rollcallv1.SnapshotOwner) error {
	owner, err := decodeOwner(o.GetOwner())
	if err != nil {
		return err
	}
	n := len(r.owners)
	if int64(o.Number) != int64(n) || r.entries > 0 || r.staged != nil || n > 0 && r.owners[n-1].owner.String() >= owner.String() {
		return fmt.Errorf("owner %s is out of order", owner)
	}
	answer, err := resultOf(o.Answer)
	if err != nil {
		return err
	}
	body, err := decodeBodyHash(o.Body)
	if err != nil {
		return fmt.Errorf("owner %s: %w", owner, err)
	}
	r.owners = append(r.owners, ownerState{owner: owner, incarnation: o.Incarnation, seq: o.Seq, body: body, answer: answer})
	return nil
}

func (r *snapshotReader) addEntry(se *rollcallv1.SnapshotEntry) error {
	e, err := newEntry(se.Service)
	if err != nil {
		return err
	}
	if int64(se.Owner) >= int64(len(r.owners)) {
		return fmt.Errorf("%s has owner %d, who is not in the snapshot", e.ID, se.Owner)
	}
	if r.lastID >= e.ID || r.staged != nil {
		return fmt.Errorf("%s after %s: out of order", e.ID, r.lastID)
	}
	r.lastID = e.ID
	r.entries++
	if r.d != nil {
		e.Owner, e.Version = r.owners[se.Owner].owner, se.Version
		r.d.set(e)
	}
	return nil
}

func (r *snapshotReader) addStaged(op *rollcallv1.StageImportOperation) error {
	part, err := decodeStageImport(op)
	if err != nil {
		return err
	}
	next := r.staged.with(part)
	if next == nil || r.staged != nil && part.part == 0 {
		return fmt.Errorf("part %d of import %q is out of order", part.part, part.id)
	}
	r.staged = next
	return nil
}

// finish compares the records read with the trailer.
func (r *snapshotReader) finish(t *rollcallv1.SnapshotTrailer) error {
	switch {
	case t.Crc != r.sum.Sum32():
		return errors.New("checksum differs: the snapshot is damaged")
	case t.Owners != uint64(len(r.owners)) || t.Entries != uint64(r.entries):
		return fmt.Errorf("the trailer counts %d owners and %d entries", t.Owners, t.Entries)
	}
	if _, err := r.r.ReadByte(); !errors.Is(err, io.EOF) {
		return errors.New("bytes after the trailer")
	}
	if r.d != nil {
		for _, os := range r.owners {
			r.d.setOwner(os)
		}
		r.d.staged = r.staged
	}
	return nil
}

func (r Result) proto() *rollcallv1.Answer {
	a := &rollcallv1.Answer{
		Epoch: r.Epoch, Index: r.Index,
		Registered: uint32(r.Registered), Unchanged: uint32(r.Unchanged), Removed: uint32(r.Removed), Yielded: uint32(r.Yielded),
	}
	// Of the refusals only conflicts are stored, because the others do not use the owner's seq.
	if ce, ok := errors.AsType[*ConflictError](r.Err); ok {
		a.Deregister = ce.Deregister
		for _, c := range ce.Conflicts {
			a.Conflicts = append(a.Conflicts, &rollcallv1.Conflict{Index: uint32(c.Index), Id: c.ID, Owner: c.Owner.Proto()})
		}
	}
	return a
}

func resultOf(a *rollcallv1.Answer) (Result, error) {
	r := Result{Answer: Answer{
		Epoch: a.GetEpoch(), Index: a.GetIndex(),
		Registered: int(a.GetRegistered()), Unchanged: int(a.GetUnchanged()), Removed: int(a.GetRemoved()), Yielded: int(a.GetYielded()),
	}}
	if len(a.GetConflicts()) == 0 {
		return r, nil
	}
	ce := &ConflictError{Deregister: a.Deregister}
	for _, c := range a.Conflicts {
		owner, err := decodeOwner(c.Owner)
		if err != nil {
			return Result{}, err
		}
		ce.Conflicts = append(ce.Conflicts, Conflict{Index: int(c.Index), ID: c.Id, Owner: owner})
	}
	r.Err = ce
	return r, nil
}
