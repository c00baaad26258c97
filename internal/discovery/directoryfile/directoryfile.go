package directoryfile

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	format  = "services"
	version = 1
	// maxLine is the maximum length of a line in bytes. A service has 16 KiB, which JSON may escape to six times that.
	maxLine = 256 << 10
)

// Header is the first line of a file.
type Header struct {
	Rollcall string    `json:"rollcall"` // "services"
	Version  int       `json:"version"`
	Cluster  string    `json:"cluster"`
	Epoch    uint64    `json:"epoch"`
	Index    uint64    `json:"index"` // Raft index of the exported state
	Exported time.Time `json:"exported"`
	Owners   int       `json:"owners"`
	Services int       `json:"services"`
}

type ownerLine struct {
	Owner       string `json:"owner"`
	Incarnation uint64 `json:"incarnation"`
}

type serviceLine struct {
	ID     string            `json:"id"`
	Kind   string            `json:"kind"`
	URL    string            `json:"url"`
	Node   string            `json:"node,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Owner  string            `json:"owner"`
}

type checksumLine struct {
	SHA256 string `json:"sha256"`
}

// File is the content of a file.
type File struct {
	Header
	// Gateways are ordered by name.
	Gateways []*rollcallv1.ImportedOwner
	// Records are ordered by id. They have no versions.
	Records []*rollcallv1.ServiceRecord
}

// Error refuses a file.
type Error struct {
	// Line is the number of the faulty line, from 1.
	Line int
	// Problem is the fault of the line.
	Problem string
	// Remedy is the action that the operator can take.
	Remedy string
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Problem) }

const (
	remedyForeign = `Give a file that "rollcall services export" wrote.`
	remedyCut     = "The file is cut: copy it again from its source, or export again."
	remedyAltered = `The file was altered after its export: export again, and change services with "rollcall services register".`
)

// Write writes a state of the directory. now is the time of the export. Write refuses a directory that Read or an import
// would refuse because of its size.
func Write(w io.Writer, s *fsm.State, now time.Time) (Header, error) {
	return write(w, s, now, rollcallv1.MaxImportBytes)
}

// remedyTooLarge is the remedy for a directory that no file may hold.
const remedyTooLarge = "take a snapshot, which has no such limit: rollcall cluster snapshot"

// write is Write with the limit of an import's bytes.
func write(w io.Writer, s *fsm.State, now time.Time, maxBytes int) (Header, error) {
	head := Header{
		Rollcall: format, Version: version, Cluster: s.Cluster(), Epoch: s.Epoch(), Index: s.Index(),
		Exported: now.UTC().Truncate(time.Second), Services: s.Len(),
	}
	var gateways []ownerLine
	size := 0
	for o := range s.Owners() {
		// Other incarnations are valid in their own cluster only: the static fleet's is its leader's epoch.
		if o.Owner.Kind == rollcallv1.OwnerKind_OWNER_KIND_GATEWAY {
			gateways = append(gateways, ownerLine{o.Owner.String(), o.Incarnation})
			size += fieldSize(proto.Size(&rollcallv1.ImportedOwner{Owner: o.Owner.Proto(), Incarnation: o.Incarnation}))
		}
	}
	head.Owners = len(gateways)
	if head.Owners > rollcallv1.MaxImportServices || head.Services > rollcallv1.MaxImportServices {
		return head, fmt.Errorf("%d services and %d gateways are more than the %d that a file may have; %s",
			head.Services, head.Owners, rollcallv1.MaxImportServices, remedyTooLarge)
	}
	for entry := range s.All() {
		size += recordSize(entry)
	}
	if size > maxBytes {
		return head, fmt.Errorf("%d services and %d gateways have %d bytes, more than the %d that an import accepts; %s",
			head.Services, head.Owners, size, maxBytes, remedyTooLarge)
	}
	sum := sha256.New()
	buffered := bufio.NewWriter(w)
	e := json.NewEncoder(io.MultiWriter(buffered, sum))
	e.SetEscapeHTML(false)
	if err := e.Encode(head); err != nil {
		return head, err
	}
	for _, g := range gateways {
		if err := e.Encode(g); err != nil {
			return head, err
		}
	}
	for entry := range s.All() {
		service := entry.Service()
		ref := service.GetWorkerRef()
		err := e.Encode(serviceLine{
			ID: service.GetId(), Kind: service.GetKind(), URL: ref.GetUrl(), Node: ref.GetNode(), Labels: ref.GetLabels(), Owner: entry.Owner.String(),
		})
		if err != nil {
			return head, err
		}
	}
	if err := e.Encode(checksumLine{hex.EncodeToString(sum.Sum(nil))}); err != nil {
		return head, err
	}
	return head, buffered.Flush()
}

// recordSize returns how many bytes of an import's messages a service has. It decodes no service.
func recordSize(e *fsm.Entry) int {
	return fieldSize(fieldSize(e.Size()) + proto.Size(&rollcallv1.ServiceRecord{Owner: e.Owner.Proto()}))
}

// fieldSize returns the encoded size of a field whose value has n bytes. The tag of a field number below 16 is one byte.
func fieldSize(n int) int { return 1 + protowire.SizeBytes(n) }

// Read reads and verifies a whole file. It returns an *Error if the file is refused.
func Read(r io.Reader) (*File, error) {
	in := &reader{lines: bufio.NewScanner(r), sum: sha256.New()}
	in.lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	in.lines.Split(splitLines)
	f := new(File)
	if err := in.header(&f.Header); err != nil {
		return nil, err
	}
	for range f.Owners {
		if err := in.gateway(f); err != nil {
			return nil, err
		}
	}
	for range f.Services {
		if err := in.service(f); err != nil {
			return nil, err
		}
	}
	return f, in.end()
}

// splitLines is bufio.ScanLines, but keeps the line end, and ends the input at a line without one.
func splitLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i+1], nil
	}
	if atEOF && len(data) > 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return 0, nil, nil
}

// reader reads the lines of a file and computes their checksum.
type reader struct {
	lines *bufio.Scanner
	sum   hash.Hash
	line  int
}

func (r *reader) refuse(remedy, problem string, args ...any) error {
	return &Error{Line: r.line, Problem: fmt.Sprintf(problem, args...), Remedy: remedy}
}

// next decodes the next line. The last line is not part of the checksum.
func (r *reader) next(want string, into any) error {
	r.line++
	if !r.lines.Scan() {
		err := r.lines.Err()
		switch {
		case err == nil, errors.Is(err, io.ErrUnexpectedEOF):
			return r.refuse(remedyCut, "the file ends where %s must follow", want)
		case errors.Is(err, bufio.ErrTooLong):
			return r.refuse(remedyAltered, "the line is longer than %d bytes", maxLine)
		}
		return fmt.Errorf("read line %d: %w", r.line, err)
	}
	if _, last := into.(*checksumLine); !last {
		r.sum.Write(r.lines.Bytes())
	}
	if err := decodeLine(r.lines.Bytes(), into); err != nil {
		return r.refuse(remedyAltered, "is not %s: %v", want, err)
	}
	return nil
}

// decodeLine decodes one JSON object, without unknown fields.
func decodeLine(line []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}

func (r *reader) header(h *Header) error {
	// The version comes first, because the fields of another version are not known.
	r.line = 1
	if !r.lines.Scan() || json.Unmarshal(r.lines.Bytes(), h) != nil || h.Rollcall != format {
		if err := r.lines.Err(); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, bufio.ErrTooLong) {
			return fmt.Errorf("read line 1: %w", err)
		}
		return r.refuse(remedyForeign, "is not the header of exported services")
	}
	r.sum.Write(r.lines.Bytes())
	switch {
	case h.Version > version:
		return r.refuse("Use the version of rollcall that wrote the file, or a later one.",
			"the file has version %d of the format, and this rollcall reads version %d", h.Version, version)
	case h.Version != version:
		return r.refuse(remedyAltered, "%d is not a version of the format", h.Version)
	case decodeLine(r.lines.Bytes(), h) != nil:
		return r.refuse(remedyAltered, "has a field that version %d of the format does not have", version)
	case h.Owners < 0 || h.Owners > rollcallv1.MaxImportServices || h.Services < 0 || h.Services > rollcallv1.MaxImportServices:
		return r.refuse(remedyAltered, "names %d owners and %d services, of which a file has at most %d each", h.Owners, h.Services, rollcallv1.MaxImportServices)
	}
	return nil
}

func (r *reader) gateway(f *File) error {
	var l ownerLine
	if err := r.next(fmt.Sprintf("owner %d of %d", len(f.Gateways)+1, f.Owners), &l); err != nil {
		return err
	}
	owner, err := parseOwner(l.Owner)
	switch n := len(f.Gateways); {
	case err != nil:
		return r.refuse(remedyAltered, "owner %v", err)
	case owner.Kind != rollcallv1.OwnerKind_OWNER_KIND_GATEWAY:
		return r.refuse(remedyAltered, "owner %q is not a gateway", l.Owner)
	case n > 0 && f.Gateways[n-1].Owner.Id >= owner.Id:
		return r.refuse(remedyAltered, "owner %q is out of order", l.Owner)
	}
	f.Gateways = append(f.Gateways, &rollcallv1.ImportedOwner{Owner: owner, Incarnation: l.Incarnation})
	return nil
}

func (r *reader) service(f *File) error {
	var l serviceLine
	if err := r.next(fmt.Sprintf("service %d of %d", len(f.Records)+1, f.Services), &l); err != nil {
		return err
	}
	s := &rollcallv1.Service{Id: l.ID, Kind: l.Kind, WorkerRef: &rollcallv1.WorkerRef{Url: l.URL, Node: l.Node, Labels: l.Labels}}
	if vs := s.ValidateStored(); len(vs) > 0 {
		return r.refuse(remedyAltered, "service %q: %s", l.ID, vs[0])
	}
	owner, err := parseOwner(l.Owner)
	switch n := len(f.Records); {
	case err != nil:
		return r.refuse(remedyAltered, "service %q: owner %v", l.ID, err)
	case n > 0 && f.Records[n-1].Service.Id >= l.ID:
		return r.refuse(remedyAltered, "service %q is out of order", l.ID)
	}
	f.Records = append(f.Records, &rollcallv1.ServiceRecord{Service: s, Owner: owner})
	return nil
}

// end verifies the checksum, and that nothing follows it.
func (r *reader) end() error {
	var l checksumLine
	if err := r.next("the checksum", &l); err != nil {
		return err
	}
	if got := hex.EncodeToString(r.sum.Sum(nil)); l.SHA256 != got {
		return r.refuse(remedyAltered, "the checksum is %.64q, but that of the lines before is %q", l.SHA256, got)
	}
	r.line++
	if r.lines.Scan() || r.lines.Err() != nil {
		return r.refuse(remedyAltered, "follows the last line")
	}
	return nil
}

// parseOwner is the inverse of fsm.Owner.String.
func parseOwner(text string) (*rollcallv1.Owner, error) {
	if id, ok := strings.CutPrefix(text, "gateway/"); ok {
		if err := rollcallv1.CheckDNSLabel(id); err != nil {
			return nil, fmt.Errorf("id %w", err)
		}
		return &rollcallv1.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, Id: id}, nil
	}
	for _, o := range []fsm.Owner{fsm.Operator, fsm.Static} {
		if text == o.String() {
			return o.Proto(), nil
		}
	}
	return nil, fmt.Errorf("%.80q is none of gateway/ID, operator and static", text)
}
