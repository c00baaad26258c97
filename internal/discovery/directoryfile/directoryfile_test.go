package directoryfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

var now = time.Date(2026, 11, 23, 17, 0, 0, 123, time.UTC)

// machine is a directory with its own log.
type machine struct {
	*fsm.Machine
	t     testing.TB
	index uint64
}

func newMachine(t testing.TB) *machine {
	m := &machine{Machine: fsm.New(), t: t}
	m.do(&rollcallv1.Operation{Kind: &rollcallv1.Operation_LeaderEstablished{LeaderEstablished: &rollcallv1.LeaderEstablished{Node: "n-1", Cluster: "c-1"}}})
	return m
}

func (m *machine) do(op *rollcallv1.Operation) {
	m.t.Helper()
	m.index++
	data, err := proto.Marshal(&rollcallv1.Command{Operations: []*rollcallv1.Operation{op}})
	require.NoError(m.t, err)
	require.NoError(m.t, m.Apply(&raft.Log{Index: m.index, Term: 1, Data: data}).([]fsm.Result)[0].Err)
}

func (m *machine) register(o fsm.Owner, incarnation, seq uint64, services ...*rollcallv1.Service) {
	m.t.Helper()
	op := &rollcallv1.RegisterOperation{Fence: &rollcallv1.WriteFence{Owner: o.Proto(), Incarnation: incarnation, Seq: seq, Epoch: 1}}
	for _, s := range services {
		raw, err := fsm.EncodeService(s)
		require.NoError(m.t, err)
		op.Services = append(op.Services, raw)
	}
	m.do(&rollcallv1.Operation{Kind: &rollcallv1.Operation_Register{Register: op}})
}

// load applies a file to the directory as an import does.
func (m *machine) load(f *File) {
	m.t.Helper()
	stage := &rollcallv1.StageImportOperation{Epoch: 1, Import: "i", Owners: f.Gateways}
	for _, rec := range f.Records {
		raw, err := fsm.EncodeService(rec.Service)
		require.NoError(m.t, err)
		stage.Services = append(stage.Services, &rollcallv1.ImportedService{Service: raw, Owner: rec.Owner})
	}
	m.do(&rollcallv1.Operation{Kind: &rollcallv1.Operation_StageImport{StageImport: stage}})
	m.do(&rollcallv1.Operation{Kind: &rollcallv1.Operation_FinishImport{
		FinishImport: &rollcallv1.FinishImportOperation{Epoch: 1, Import: "i", Parts: 1, Apply: true},
	}})
}

func (m *machine) export() string {
	m.t.Helper()
	var b strings.Builder
	_, err := Write(&b, m.State(), now)
	require.NoError(m.t, err)
	return b.String()
}

func gateway(id string) fsm.Owner {
	return fsm.Owner{Kind: rollcallv1.OwnerKind_OWNER_KIND_GATEWAY, ID: id}
}

func service(id string, labels map[string]string) *rollcallv1.Service {
	return &rollcallv1.Service{Id: id, Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: "http://" + id + ":3000/?a=1&b=2", Node: "host-1", Labels: labels}}
}

// varied returns a directory with every kind of owner.
func varied(t testing.TB) *machine {
	m := newMachine(t)
	m.register(gateway("edge-1"), 17, 3, service("b", map[string]string{"zone": "<ä>", "chain": "1"}))
	m.register(gateway("idle"), 18, 1)
	m.register(fsm.Static, 1, 1, service("c", nil))
	m.register(fsm.Operator, 0, 0, &rollcallv1.Service{Id: "a", Kind: "signer", WorkerRef: &rollcallv1.WorkerRef{Url: "tcp://a:1"}})
	return m
}

// sealed appends the checksum to lines.
func sealed(lines ...string) string {
	body := strings.Join(lines, "\n") + "\n"
	sum := sha256.Sum256([]byte(body))
	return body + `{"sha256":"` + hex.EncodeToString(sum[:]) + `"}` + "\n"
}

func TestWrite_Format(t *testing.T) {
	t.Parallel()
	require.Equal(t, sealed(
		`{"rollcall":"services","version":1,"cluster":"c-1","epoch":1,"index":5,"exported":"2026-11-23T17:00:00Z","owners":2,"services":3}`,
		`{"owner":"gateway/edge-1","incarnation":17}`,
		`{"owner":"gateway/idle","incarnation":18}`,
		`{"id":"a","kind":"signer","url":"tcp://a:1","owner":"operator"}`,
		`{"id":"b","kind":"relayer","url":"http://b:3000/?a=1&b=2","node":"host-1","labels":{"chain":"1","zone":"<ä>"},"owner":"gateway/edge-1"}`,
		`{"id":"c","kind":"relayer","url":"http://c:3000/?a=1&b=2","node":"host-1","owner":"static"}`,
	), varied(t).export())
}

// An export must count bytes as the import of its file does, however the import splits its messages.
func TestWrite_TooLargeForImport_IsRefused(t *testing.T) {
	t.Parallel()
	m := varied(t)
	for i := range 300 { // lengths of one, two and three bytes
		m.register(gateway(fmt.Sprintf("edge-%d", i)), uint64(i)*1e16, 1,
			service(fmt.Sprintf("s-%d", i), map[string]string{"k": strings.Repeat("v", i%256), "l": strings.Repeat("\u2028", i%85)}))
	}
	labels := make(map[string]string)
	for i := range 60 {
		labels[fmt.Sprintf("k%02d", i)] = strings.Repeat("v", 256)
	}
	m.register(fsm.Operator, 0, 0, service("large", labels))
	f, err := Read(strings.NewReader(m.export()))
	require.NoError(t, err)
	size := proto.Size(&rollcallv1.ImportServicesRequest{Owners: f.Gateways, Records: f.Records})
	split := 0
	for _, g := range f.Gateways {
		split += proto.Size(&rollcallv1.ImportServicesRequest{Owners: []*rollcallv1.ImportedOwner{g}})
	}
	for _, rec := range f.Records {
		split += proto.Size(&rollcallv1.ImportServicesRequest{Records: []*rollcallv1.ServiceRecord{rec}})
	}
	require.Equal(t, size, split)

	var b strings.Builder
	_, err = write(&b, m.State(), now, size)
	require.NoError(t, err)
	require.Equal(t, m.export(), b.String())
	b.Reset()
	_, err = write(&b, m.State(), now, size-1)
	require.ErrorContains(t, err, fmt.Sprintf("have %d bytes, more than the %d that an import accepts", size, size-1))
	require.ErrorContains(t, err, "rollcall cluster snapshot")
	require.Empty(t, b.String())
}

func TestRead_RoundTrip(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]*machine{"varied": varied(t), "ten thousand": newMachine(t), "empty": newMachine(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "ten thousand" {
				for i := range 10 {
					var services []*rollcallv1.Service
					for j := range 1000 {
						services = append(services, service(fmt.Sprintf("s-%05d", 1000*i+j), map[string]string{"i": fmt.Sprint(j)}))
					}
					m.register(gateway(fmt.Sprintf("edge-%d", i)), uint64(1763916000000000000+i), 1, services...)
				}
			}
			file := m.export()
			f, err := Read(strings.NewReader(file))
			require.NoError(t, err)
			require.Equal(t, Header{
				Rollcall: "services", Version: 1, Cluster: "c-1", Epoch: 1, Index: m.index, Exported: now.Truncate(time.Second),
				Owners: len(f.Gateways), Services: m.State().Len(),
			}, f.Header)
			next := newMachine(t)
			next.load(f)
			again, err := Read(strings.NewReader(next.export()))
			require.NoError(t, err)
			again.Header = f.Header
			require.Equal(t, len(f.Records), len(again.Records))
			for i, rec := range f.Records {
				require.True(t, proto.Equal(rec, again.Records[i]), rec.Service.Id)
			}
			for i, g := range f.Gateways {
				require.True(t, proto.Equal(g, again.Gateways[i]), g.Owner.Id)
			}
		})
	}
}

// A service of the largest size must fit, also if JSON escapes most of it.
func TestRead_LargestService(t *testing.T) {
	t.Parallel()
	labels := make(map[string]string)
	for i := range 61 {
		labels[fmt.Sprintf("k%02d", i)] = strings.Repeat("\u2028", 85)
	}
	s := service("a", labels)
	require.Empty(t, s.ValidateStored())
	m := newMachine(t)
	m.register(fsm.Operator, 0, 0, s)
	f, err := Read(strings.NewReader(m.export()))
	require.NoError(t, err)
	require.True(t, proto.Equal(s, f.Records[0].Service))
}

// A file that is cut anywhere, or has any byte changed, must be refused.
func TestRead_DamagedIsRefused(t *testing.T) {
	t.Parallel()
	file := varied(t).export()
	for n := range len(file) {
		_, err := Read(strings.NewReader(file[:n]))
		var refused *Error
		require.ErrorAs(t, err, &refused, "cut to %d bytes", n)
		require.NotEmpty(t, refused.Remedy)

		altered := []byte(file)
		altered[n] ^= 1
		_, err = Read(bytes.NewReader(altered))
		require.ErrorAs(t, err, &refused, "byte %d changed to %q", n, altered[n])
		require.NotEmpty(t, refused.Remedy)
	}
}

func TestRead_Refusals(t *testing.T) {
	t.Parallel()
	head := func(version, owners, services int) string {
		return fmt.Sprintf(`{"rollcall":"services","version":%d,"cluster":"c","epoch":1,"index":1,"exported":"2026-11-23T17:00:00Z","owners":%d,"services":%d}`, version, owners, services)
	}
	a := `{"id":"a","kind":"relayer","url":"http://a","owner":"operator"}`
	b := strings.Replace(a, `"a"`, `"b"`, 1)
	g := `{"owner":"gateway/edge","incarnation":1}`
	good := sealed(head(1, 1, 2), g, a, b)
	_, err := Read(strings.NewReader(good))
	require.NoError(t, err)
	for name, tt := range map[string]struct{ file, problem, remedy string }{
		"empty":           {"", "line 1: is not the header of exported services", remedyForeign},
		"not JSON":        {"services:\n  - id: a\n", "line 1: is not the header of exported services", remedyForeign},
		"other JSON":      {`{"services": []}` + "\n", "line 1: is not the header of exported services", remedyForeign},
		"snapshot":        {"\x0a\x1e\x08\x01\x12\n\x03abc\n", "line 1: is not the header of exported services", remedyForeign},
		"without a break": {strings.Repeat("x", maxLine+1), "line 1: is not the header of exported services", remedyForeign},
		"higher version":  {sealed(strings.Replace(head(2, 0, 0), `"epoch"`, `"new":1,"epoch"`, 1)), "line 1: the file has version 2 of the format, and this rollcall reads version 1", "Use the version of rollcall that wrote the file, or a later one."},
		"version 0":       {sealed(head(0, 0, 0)), "line 1: 0 is not a version of the format", remedyAltered},
		"unknown field":   {sealed(strings.Replace(head(1, 0, 0), `"epoch"`, `"new":1,"epoch"`, 1)), "line 1: has a field that version 1 of the format does not have", remedyAltered},
		"too many":        {sealed(head(1, 0, 1_000_001)), "line 1: names 0 owners and 1000001 services, of which a file has at most 1000000 each", remedyAltered},
		"negative":        {sealed(head(1, -1, 0)), "line 1: names -1 owners", remedyAltered},
		"cut at a line":   {strings.Join(strings.SplitAfter(good, "\n")[:3], ""), "line 4: the file ends where service 2 of 2 must follow", remedyCut},
		"cut in a line":   {good[:strings.Index(good, `"b"`)], "line 4: the file ends where service 2 of 2 must follow", remedyCut},
		"no checksum":     {strings.Join(strings.SplitAfter(good, "\n")[:4], ""), "line 5: the file ends where the checksum must follow", remedyCut},
		"removed line":    {strings.Replace(good, a+"\n", "", 1), `line 4: is not service 2 of 2: json: unknown field "sha256"`, remedyAltered},
		"added line":      {strings.Replace(good, a+"\n", a+"\n"+a+"\n", 1), `line 4: service "a" is out of order`, remedyAltered},
		"edited":          {strings.Replace(good, "http://a", "http://x", 1), "line 5: the checksum is ", remedyAltered},
		"more after it":   {good + a + "\n", "line 6: follows the last line", remedyAltered},
		"more, cut":       {good + a, "line 6: follows the last line", remedyAltered},
		"two values":      {sealed(head(1, 0, 1), a+a), "line 2: is not service 1 of 1: more than one value", remedyAltered},
		"long line":       {sealed(head(1, 0, 1), strings.Repeat(" ", maxLine)+a), "line 2: the line is longer than 262144 bytes", remedyAltered},
		"invalid service": {sealed(head(1, 0, 1), strings.Replace(a, "http", "ftp", 1)), `line 2: service "a": worker_ref.url: has the scheme "ftp"`, remedyAltered},
		"unknown owner":   {sealed(head(1, 0, 1), strings.Replace(a, "operator", "unknown", 1)), `line 2: service "a": owner "unknown" is none of gateway/ID, operator and static`, remedyAltered},
		"gateway's name":  {sealed(head(1, 0, 1), strings.Replace(a, "operator", "gateway/X", 1)), `line 2: service "a": owner id "X" is not a DNS label`, remedyAltered},
		"ids out of order": {
			sealed(head(1, 0, 2), b, a), `line 3: service "a" is out of order`, remedyAltered,
		},
		"owners out of order": {sealed(head(1, 2, 0), g, g), `line 3: owner "gateway/edge" is out of order`, remedyAltered},
		"owner is static":     {sealed(head(1, 1, 0), strings.Replace(g, "gateway/edge", "static", 1)), `line 2: owner "static" is not a gateway`, remedyAltered},
		"owner is nothing":    {sealed(head(1, 1, 0), `{}`), `line 2: owner "" is none of`, remedyAltered},
	} {
		_, err := Read(strings.NewReader(tt.file))
		var refused *Error
		require.ErrorAs(t, err, &refused, name)
		require.Contains(t, err.Error(), tt.problem, name)
		require.Equal(t, tt.remedy, refused.Remedy, name)
	}
}

func TestRead_DiskError(t *testing.T) {
	t.Parallel()
	file := varied(t).export()
	failed := errors.New("input/output error")
	for _, n := range []int{0, 10, 200} {
		_, err := Read(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader(file[:n+1]))))
		require.ErrorIs(t, err, iotest.ErrTimeout)
		_, err = Read(iotest.ErrReader(failed))
		require.ErrorIs(t, err, failed)
	}
}
