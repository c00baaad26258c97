package foreman

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ gateway.Source = (*Foreman)(nil)

// working is a foreman whose Run is active.
type working struct {
	*Foreman
	t    *testing.T
	stop func()
}

func start(t *testing.T, cfg Config) *working {
	t.Helper()
	f, err := New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return &working{f, t, stop}
}

func (w *working) set() gateway.Set {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	set, err := w.Services(ctx)
	require.NoError(w.t, err)
	return set
}

// becomes waits until the set is "offered,… | held,…", with a "?" if it is not complete.
func (w *working) becomes(want string) {
	w.t.Helper()
	limit := time.After(30 * time.Second)
	for {
		got := describe(w.set())
		if got == want {
			return
		}
		select {
		case <-w.Changed():
		case <-limit:
			w.t.Fatalf("the set is %q, not %q", got, want)
		}
	}
}

func describe(set gateway.Set) string {
	text := ids(set.Services)
	if len(set.NotReady) > 0 {
		text += " | " + ids(set.NotReady)
	}
	if !set.Complete {
		text += " ?"
	}
	return text
}

func ids(services []*rollcallv1.Service) string {
	var all []string
	for _, s := range services {
		all = append(all, s.GetId())
	}
	return strings.Join(all, ",")
}

func service(id string) *rollcallv1.Service {
	return &rollcallv1.Service{Id: id, Kind: "relayer", WorkerRef: &rollcallv1.WorkerRef{Url: "http://" + id + ":3000"}}
}

func some(ids ...string) []*rollcallv1.Service {
	var all []*rollcallv1.Service
	for _, id := range ids {
		all = append(all, service(id))
	}
	return all
}

// define returns the text of a definition file.
func define(ids ...string) string {
	var b strings.Builder
	b.WriteString("services:\n")
	for _, id := range ids {
		fmt.Fprintf(&b, "- {id: %s, kind: relayer, worker_ref: {url: 'http://%s:3000'}}\n", id, id)
	}
	return b.String()
}

func write(t *testing.T, folder, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
}

// checker returns the test's results, by service id; others pass.
type checker struct {
	mu      sync.Mutex
	answers map[string]error
	asked   map[string]int
}

func (c *checker) Check(_ context.Context, s *rollcallv1.Service) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked == nil {
		c.asked = map[string]int{}
	}
	c.asked[s.GetId()]++
	return c.answers[s.GetId()]
}

func (c *checker) answer(id string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answers == nil {
		c.answers = map[string]error{}
	}
	c.answers[id] = err
}

func TestForeman_FilesChange_SetFollows(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write(t, folder, "b.yaml", define("b-1", "b-2"))
	write(t, folder, "c.json", `{"id":"c","kind":"relayer","worker_ref":{"url":"http://c:1"}}`)
	write(t, folder, ".hidden.yaml", define("hidden"))
	write(t, folder, "readme.md", define("readme"))
	require.NoError(t, os.Mkdir(filepath.Join(folder, "folder.yaml"), 0o700))
	f := start(t, Config{Folder: folder, StartupWait: -1, Node: "host-1"})
	f.becomes("b-1,b-2,c")
	require.Equal(t, "host-1", f.set().Services[0].GetWorkerRef().GetNode())

	write(t, folder, "a.yml", define("a"))
	f.becomes("a,b-1,b-2,c")
	write(t, folder, "b.yaml", define("b-2", "b-3"))
	f.becomes("a,b-2,b-3,c")
	require.NoError(t, os.Remove(filepath.Join(folder, "c.json")))
	f.becomes("a,b-2,b-3")

	temp := filepath.Join(folder, "a.yml.new") // like a careful program replaces a file
	require.NoError(t, os.WriteFile(temp, []byte(define("a", "a-2")), 0o600))
	require.NoError(t, os.Rename(temp, filepath.Join(folder, "a.yml")))
	f.becomes("a,a-2,b-2,b-3")

	require.NoError(t, os.Rename(filepath.Join(folder, "b.yaml"), filepath.Join(folder, "z.yaml")))
	write(t, folder, "a.yml", "services: []")
	f.becomes("b-2,b-3")
	require.NoError(t, os.Remove(filepath.Join(folder, "a.yml")))
	require.Eventually(t, func() bool { return len(f.Status().Files) == 1 }, 2*time.Minute, time.Millisecond)
	require.NoError(t, os.Remove(filepath.Join(folder, "z.yaml")))
	f.becomes(" ?") // without stored state, an empty set is not certainly complete
}

func TestForeman_BrokenFile_KeepsItsLastGoodVersion(t *testing.T) {
	t.Parallel()
	folder, state := t.TempDir(), t.TempDir()
	write(t, folder, "a.yaml", define("a-1", "a-2"))
	write(t, folder, "b.yaml", define("b"))
	registry := prometheus.NewRegistry()
	f := start(t, Config{Folder: folder, StateDir: state, StartupWait: -1, Metrics: NewMetrics(registry)})
	f.becomes("a-1,a-2,b")

	write(t, folder, "a.yaml", define("a-1", "a-2")[:40])
	write(t, folder, "b.yaml", define("b", "b-2")) // confirms that the folder was read
	f.becomes("a-1,a-2,b,b-2")
	require.Eventually(t, func() bool { return f.Status().Files[0].Error != "" }, 2*time.Minute, time.Millisecond)
	status := f.Status()
	require.Equal(t, "a.yaml", status.Files[0].Name)
	require.Contains(t, status.Files[0].Error, "malformed YAML")
	require.NotNil(t, status.Files[0].Since)
	require.Equal(t, 2, status.Files[0].Services)
	require.Empty(t, status.Files[1].Error)
	require.Equal(t, 1.0, gauge(t, registry, "rollcall_foreman_files", "broken"))
	require.Equal(t, 1.0, gauge(t, registry, "rollcall_foreman_files", "good"))
	require.Equal(t, 4.0, gauge(t, registry, "rollcall_foreman_services", "offered"))

	// It must keep its last good version when the gateway is restarted, even after a kill.
	f.stop()
	write(t, folder, "b.yaml", define("b"))
	f = start(t, Config{Folder: folder, StateDir: state})
	f.becomes("a-1,a-2,b")
	require.NotEmpty(t, f.Status().Files[0].Error)

	write(t, folder, "a.yaml", define("a-3"))
	f.becomes("a-3,b")
	require.Empty(t, f.Status().Files[0].Error)

	// But a file removed in the meantime must be removed.
	f.stop()
	require.NoError(t, os.Remove(filepath.Join(folder, "a.yaml")))
	f = start(t, Config{Folder: folder, StateDir: state})
	f.becomes("b")
}

func gauge(t *testing.T, registry *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no %s{%s}", name, label)
	return 0
}

func TestForeman_StateFolderMissing_StoresFilesLater(t *testing.T) {
	t.Parallel()
	folder, state := t.TempDir(), filepath.Join(t.TempDir(), "state")
	f := start(t, Config{Folder: folder, StateDir: state, StartupWait: -1, Rescan: 20 * time.Millisecond})
	require.NoError(t, os.RemoveAll(state))
	write(t, folder, "a.yaml", define("a"))
	f.becomes("a") // used all the same, because the file itself is durable
	require.NotEmpty(t, f.Status().StateError)
	require.NoError(t, os.Mkdir(state, 0o700))
	require.Eventually(t, func() bool { return f.Status().StateError == "" }, 2*time.Minute, time.Millisecond)
	m, err := loadState(state)
	require.NoError(t, err)
	require.Contains(t, m.Files, "a.yaml")
}

func TestForeman_FileNeverValid_SetIsIncomplete(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write(t, folder, "a.yaml", "oh no")
	write(t, folder, "b.yaml", define("b"))
	f := start(t, Config{Folder: folder, StartupWait: -1})
	f.becomes("b ?")
	write(t, folder, "a.yaml", define("a"))
	f.becomes("a,b")
}

func TestForeman_UnreadableFolder_IsReported(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "definitions")
	f := start(t, Config{Folder: folder, StartupWait: -1, Rescan: 20 * time.Millisecond})
	require.NoError(t, f.Advertise(some("a")))
	f.becomes("a ?")
	require.Contains(t, f.Status().FolderError, "no such file")

	require.NoError(t, os.Mkdir(folder, 0o700))
	write(t, folder, "b.yaml", define("b"))
	f.becomes("a,b")
	require.Empty(t, f.Status().FolderError)

	require.NoError(t, os.RemoveAll(folder)) // for example an unmounted volume, unlike removed files
	require.Eventually(t, func() bool { return f.Status().FolderError != "" }, 2*time.Minute, time.Millisecond)
	require.Contains(t, describe(f.set()), "a")
}

func TestForeman_ServiceDefinedTwice_FirstFileWins(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write(t, folder, "a.yaml", define("x"))
	write(t, folder, "b.yaml", define("x", "y"))
	f := start(t, Config{Folder: folder, StartupWait: -1})
	f.becomes("x,y")
	require.Equal(t, []string{"x"}, f.Status().Files[1].Shadowed)
	require.Equal(t, "a.yaml", f.Status().Services[0].File)

	require.NoError(t, f.Advertise(some("z")))
	f.becomes("x,y,z")
	require.ErrorContains(t, f.Advertise(some("w", "x")), "service defined by a file in a.yaml: x: is defined by a.yaml; change it there")
	f.becomes("x,y,z")
	_, err := f.Withdraw([]string{"z", "y"})
	require.ErrorContains(t, err, "y: is defined by b.yaml")

	write(t, folder, "c.yaml", define("z", "c")) // now defines an advertised id
	f.becomes("c,x,y,z")
	require.Equal(t, []string{"z"}, f.Status().Shadowed)
	require.Equal(t, "c.yaml", f.Status().Services[3].File)
	n, err := f.Withdraw([]string{"z"})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	f.becomes("c,x,y,z")

	require.NoError(t, os.Remove(filepath.Join(folder, "a.yaml")))
	write(t, folder, "d.yaml", define("d"))
	f.becomes("c,d,x,y,z")
	require.Eventually(t, func() bool { return f.Status().Services[2].File == "b.yaml" }, 2*time.Minute, time.Millisecond)
}

func TestAdvertise_Restarted_AreKept(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "made", "if", "need", "be")
	f := start(t, Config{StateDir: state, StartupWait: -1})
	f.becomes(" ?")
	require.NoError(t, f.Advertise(some("a", "b", "c")))
	f.becomes("a,b,c")
	n, err := f.Withdraw([]string{"b", "never-there"})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	f.becomes("a,c")
	changed := service("c")
	changed.WorkerRef.Url = "https://c:1"
	require.NoError(t, f.Advertise([]*rollcallv1.Service{changed}))

	// Killed: all state was stored before. Its temporary file is left.
	require.NoError(t, os.WriteFile(filepath.Join(state, memoryName+".123"), []byte("{"), 0o600))
	f2 := start(t, Config{StateDir: state, StartupWait: time.Hour})
	f2.becomes("a,c")
	require.Equal(t, "https://c:1", f2.set().Services[1].GetWorkerRef().GetUrl())
	left, err := os.ReadDir(state)
	require.NoError(t, err)
	require.Len(t, left, 1)

	_, err = f2.Withdraw([]string{"a", "c"})
	require.NoError(t, err)
	f3 := start(t, Config{StateDir: state, StartupWait: time.Hour})
	f3.becomes("") // stored: the set is certainly empty
}

func TestForeman_RestartedWithoutServices_SetStaysIncomplete(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	f := start(t, Config{StateDir: state, StartupWait: -1})
	f.becomes(" ?")
	f.stop()
	f = start(t, Config{StateDir: state, StartupWait: -1})
	f.becomes(" ?")
}

func TestNew_UnreadableState_IsRefused(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"torn":  `{"format":1,"adv`,
		"newer": `{"format":2}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			write(t, state, memoryName, text)
			_, err := New(Config{StateDir: state})
			require.ErrorContains(t, err, filepath.Join(state, memoryName))
			require.ErrorContains(t, err, "remove it to start without the advertisements")
		})
	}
	t.Run("no folder", func(t *testing.T) {
		t.Parallel()
		blocked := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(blocked, nil, 0o600))
		_, err := New(Config{StateDir: blocked})
		require.ErrorContains(t, err, "not a directory")
	})
}

func TestAdvertise_TooLargeWithDefaultNode_IsRefused(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	f := start(t, Config{StateDir: state, StartupWait: -1, Node: "host-1"})
	large := service("large")
	large.WorkerRef.Labels = map[string]string{}
	for i := range 60 {
		large.WorkerRef.Labels[fmt.Sprintf("l-%d", i)] = strings.Repeat("x", rollcallv1.MaxLabelValueBytes)
	}
	large.WorkerRef.Url = "http://large:1/"
	large.WorkerRef.Url += strings.Repeat("x", rollcallv1.MaxServiceBytes-proto.Size(large)-5)
	require.Empty(t, large.Validate(), "valid without the node")
	require.LessOrEqual(t, proto.Size(large), rollcallv1.MaxServiceBytes)
	err := f.Advertise([]*rollcallv1.Service{large})
	require.ErrorContains(t, err, "makes a service of ")
	require.IsType(t, &Problem{}, err)
	require.ErrorContains(t, f.Advertise([]*rollcallv1.Service{{Id: "a", Kind: "relayer"}}), "worker_ref.url: is empty")

	require.NoError(t, f.Advertise(some("a")))
	f.stop()
	f = start(t, Config{StateDir: state, Node: "host-1"})
	f.becomes("a")
	require.Empty(t, f.Status().StateError)
}

// An earlier version may have accepted a file that is refused now, such as a relayer's URL with a query.
func TestNew_InvalidStoredFile_SetIsIncompleteUntilTheFileIsValid(t *testing.T) {
	t.Parallel()
	folder, state := t.TempDir(), t.TempDir()
	write(t, state, memoryName, `{"format":1,"files":{
		"a.yaml":[{"id":"bad","kind":"relayer","worker_ref":{"url":"http://bad:1?x=1"}}],
		"b.yaml":[{"id":"b","kind":"relayer","worker_ref":{"url":"http://b:1"}}]}}`)
	write(t, folder, "a.yaml", strings.ReplaceAll(define("bad"), "http://bad", "grpc://bad"))
	write(t, folder, "b.yaml", define("b"))
	f := start(t, Config{Folder: folder, StateDir: state, StartupWait: -1, Rescan: 20 * time.Millisecond})
	f.becomes("b ?")
	require.Contains(t, f.Status().Files[0].Error, "a relayer needs http:// or https://")
	write(t, folder, "a.yaml", define("good"))
	f.becomes("b,good")
}

func TestNew_InvalidStoredAdvertisement_IsSkippedAndReported(t *testing.T) {
	t.Parallel()
	for name, settle := range map[string]func(f *Foreman) error{
		"advertised again": func(f *Foreman) error { return f.Advertise(some("bad")) },
		"withdrawn": func(f *Foreman) error {
			n, err := f.Withdraw([]string{"bad", "bad"})
			if err == nil && n != 1 {
				err = fmt.Errorf("%d withdrawn", n)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			write(t, state, memoryName, `{"format":1,"advertised":[
				{"id":"a","kind":"relayer","worker_ref":{"url":"http://a:1"}},
				{"id":"bad","kind":"relayer","worker_ref":{"url":"http://bad"},"worker_ref":{"url":"ftp://bad"}},
				{"id":"c","kind":"relayer","worker_ref":{"url":"http://c:1"}}]}`)
			var out bytes.Buffer
			f := start(t, Config{StateDir: state, StartupWait: -1, Logger: slog.New(slog.NewTextHandler(&out, nil))})
			f.becomes("a,c ?") // incomplete, so that the directory keeps the skipped service
			require.Contains(t, f.Status().StateError, `1 stored advertisements are not valid and are skipped in foreman.json: "bad": invalid services`)
			require.NoError(t, f.Advertise(some("d")))
			f.becomes("a,c,d ?")
			f.stop()
			require.Contains(t, out.String(), `msg="stored advertisement is not valid; it is skipped" component=foreman service=bad`)

			f = start(t, Config{StateDir: state, StartupWait: -1})
			f.becomes("a,c,d ?")
			require.NoError(t, settle(f.Foreman))
			require.Eventually(t, func() bool { return f.set().Complete }, 2*time.Minute, time.Millisecond)
			require.Empty(t, f.Status().StateError)
			want := describe(f.set())
			f.stop()
			f = start(t, Config{StateDir: state, StartupWait: -1})
			f.becomes(want)
		})
	}
}

func TestAdvertise_NotSaved_IsNotUsed(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	f := start(t, Config{StateDir: state, StartupWait: -1})
	require.NoError(t, f.Advertise(some("a")))
	require.NoError(t, os.RemoveAll(state))
	err := f.Advertise(some("b"))
	require.ErrorContains(t, err, "remember what is advertised")
	_, err = f.Withdraw([]string{"a"})
	require.Error(t, err)
	f.becomes("a")
	require.NotEmpty(t, f.Status().StateError)

	require.NoError(t, os.Mkdir(state, 0o700))
	require.NoError(t, f.Advertise(some("a"))) // unchanged, but not durable on disk
	require.Empty(t, f.Status().StateError)
	f2 := start(t, Config{StateDir: state})
	f2.becomes("a")
}

func TestAdvertise_TooManyServices_IsRefused(t *testing.T) {
	t.Parallel()
	f := start(t, Config{StartupWait: -1})
	var many []*rollcallv1.Service
	for i := range rollcallv1.MaxServicesPerCall {
		many = append(many, service(fmt.Sprintf("s-%d", i)))
	}
	require.NoError(t, f.Advertise(many))
	require.NoError(t, f.Advertise(many[:10]))
	require.ErrorContains(t, f.Advertise(some("one-more")), "more than 10000 services on this host; split them across several gateway ids")
	require.Len(t, f.set().Services, rollcallv1.MaxServicesPerCall)
	require.ErrorContains(t, f.Advertise([]*rollcallv1.Service{{Id: "A"}}), "invalid services")
}

// Services above the limit must be refused with their file or advertisement, without affecting others.
func TestForeman_TooManyServicesInFiles_RefusesTheExcess(t *testing.T) {
	t.Parallel()
	many := func(prefix string, n int) string {
		all := make([]definition, n)
		for i := range all {
			all[i] = definitionOf(service(fmt.Sprintf("%s-%d", prefix, i)))
		}
		text, err := json.Marshal(all)
		require.NoError(t, err)
		return string(text)
	}
	folder, state := t.TempDir(), t.TempDir()
	write(t, folder, "b.json", many("b", 5000))
	f := start(t, Config{Folder: folder, StateDir: state, StartupWait: -1})
	require.NoError(t, f.Advertise(some("ad")))
	require.Len(t, f.set().Services, 5001)
	refused := func(name string) func() bool {
		return func() bool {
			for _, file := range f.Status().Files {
				if file.Name == name {
					return strings.HasPrefix(file.Error, "more than 10000 services on this host; split them")
				}
			}
			return false
		}
	}
	write(t, folder, "a.json", many("a", 5000))
	require.Eventually(t, refused("a.json"), 2*time.Minute, time.Millisecond)
	require.Len(t, f.set().Services, 5001)
	require.False(t, f.set().Complete, "the file's definitions are not certainly gone")
	write(t, folder, "b.json", many("b", 10000))
	require.Eventually(t, refused("b.json"), 2*time.Minute, time.Millisecond)
	require.Len(t, f.set().Services, 5001)

	// The same must hold after a restart, in any reading order.
	f.stop()
	f = start(t, Config{Folder: folder, StateDir: state})
	require.Len(t, f.set().Services, 5001)
	require.Eventually(t, refused("a.json"), 2*time.Minute, time.Millisecond)

	_, err := f.Withdraw([]string{"ad"})
	require.NoError(t, err)
	write(t, folder, "b.json", many("b", 5000))
	require.Eventually(t, func() bool { set := f.set(); return len(set.Services) == 10_000 && set.Complete }, 2*time.Minute, 10*time.Millisecond)
	require.ErrorContains(t, f.Advertise(some("ad")), "more than 10000 services on this host")
	require.NoError(t, f.Advertise(nil))
}

func TestAdvertise_TooManyBytes_IsRefused(t *testing.T) {
	t.Parallel()
	big := func(i int) *rollcallv1.Service {
		s := service(fmt.Sprintf("s-%d", i))
		s.WorkerRef.Labels = map[string]string{}
		for l := range rollcallv1.MaxLabels {
			s.WorkerRef.Labels[fmt.Sprintf("l-%d", l)] = strings.Repeat("x", 50)
		}
		return s
	}
	f := start(t, Config{StartupWait: -1, Node: "host-1"})
	taken := 0
	for {
		var more []*rollcallv1.Service
		for i := range 100 {
			more = append(more, big(taken+i))
		}
		if err := f.Advertise(more); err != nil {
			require.ErrorContains(t, err, "services of more than 4193280 bytes on this host; split them across several gateway ids")
			break
		}
		taken += len(more)
	}
	services := f.set().Services
	require.Len(t, services, taken)
	size := proto.Size(&rollcallv1.RegisterServicesRequest{Services: services})
	require.Less(t, size, rollcallv1.MaxBytesPerCall)
	require.Greater(t, size, rollcallv1.MaxBytesPerCall*9/10)
	require.NoError(t, f.Advertise(services[:1]), "existing services are kept")
}

// State of a later version must be readable, although it has unknown fields.
func TestNew_StateOfLaterVersion_IsRead(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	write(t, state, memoryName, `{"format":1,"more":{"x":1},"advertised":[{"id":"a","kind":"relayer","new":1,"worker_ref":{"url":"http://a:1","newer":2}}]}`)
	f := start(t, Config{StateDir: state})
	f.becomes("a")
}

func TestForeman_FolderEmptiedWhileStopped_IsReported(t *testing.T) {
	t.Parallel()
	folder, state := t.TempDir(), t.TempDir()
	write(t, folder, "a.yaml", define("a"))
	write(t, folder, "b.yaml", define("b"))
	f := start(t, Config{Folder: folder, StateDir: state, StartupWait: -1, Rescan: 20 * time.Millisecond, MissingFilesGrace: 300 * time.Millisecond})
	f.becomes("a,b")
	f.stop()

	// While the foreman is stopped, the folder is emptied, or is not mounted yet.
	for _, name := range []string{"a.yaml", "b.yaml"} {
		require.NoError(t, os.Rename(filepath.Join(folder, name), filepath.Join(state, name)))
	}
	f = start(t, Config{Folder: folder, StateDir: state, Rescan: 20 * time.Millisecond, MissingFilesGrace: 300 * time.Millisecond})
	f.becomes("a,b")
	require.Contains(t, f.Status().FolderError, "no definition file, and there were some when this last ran")
	for _, name := range []string{"a.yaml", "b.yaml"} {
		require.NoError(t, os.Rename(filepath.Join(state, name), filepath.Join(folder, name)))
	}
	require.Eventually(t, func() bool { return f.Status().FolderError == "" }, 2*time.Minute, time.Millisecond)

	for _, name := range []string{"a.yaml", "b.yaml"} {
		require.NoError(t, os.Rename(filepath.Join(folder, name), filepath.Join(state, name)))
	}
	f.becomes("") // at the end of its grace, because the folder was there all the time
}

func TestForeman_CheckFails_DelaysOnlyTheFirstOffer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &checker{}
		c.answer("down", errors.New("connection refused"))
		f := start(t, Config{Checker: c, StartupWait: -1})
		require.NoError(t, f.Advertise(some("up", "down")))
		synctest.Wait()
		require.Equal(t, "up | down", describe(f.set()))
		status := f.Status()
		require.Equal(t, Held, status.Services[0].State)
		require.Equal(t, "connection refused", status.Services[0].Reason)
		require.Equal(t, 1, status.Services[0].Checks)
		require.Equal(t, Offered, status.Services[1].State)

		pass(time.Minute)
		require.InDelta(t, 15, c.asked["down"], 5)
		require.Equal(t, 1, c.asked["up"], "once is enough")
		<-f.Changed()
		c.answer("down", nil)
		pass(7 * time.Second)
		require.Len(t, f.Changed(), 1)
		require.Equal(t, "down,up", describe(f.set()))

		// From here on only the definition counts, not the health.
		c.answer("up", errors.New("dead"))
		moved := service("up")
		moved.WorkerRef.Url = "http://elsewhere:1"
		require.NoError(t, f.Advertise([]*rollcallv1.Service{moved}))
		pass(time.Minute)
		require.Equal(t, "down,up", describe(f.set()))
		require.Equal(t, "http://elsewhere:1", f.set().Services[1].GetWorkerRef().GetUrl())

		// A service that was withdrawn and advertised again is new.
		_, err := f.Withdraw([]string{"up"})
		require.NoError(t, err)
		require.NoError(t, f.Advertise(some("up")))
		pass(time.Minute)
		require.Equal(t, "down | up", describe(f.set()))
		_, err = f.Withdraw([]string{"up"})
		require.NoError(t, err)
		asked := c.asked["up"]
		pass(time.Minute)
		require.Equal(t, asked, c.asked["up"], "a service that is not defined is not checked")
	})
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// slow responds after its time, or never.
type slow time.Duration

func (s slow) Check(ctx context.Context, _ *rollcallv1.Service) error {
	if !sleep(ctx, time.Duration(s)) {
		return ctx.Err()
	}
	return nil
}

func TestServices_FirstSet_WaitsForAdvertisementsAndChecks(t *testing.T) {
	t.Parallel()
	first := func(t *testing.T, f *working) (string, time.Duration) {
		began := time.Now()
		set, err := f.Services(t.Context())
		require.NoError(t, err)
		return describe(set), time.Since(began)
	}
	t.Run("for advertisements and their checks", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := start(t, Config{Checker: slow(400 * time.Millisecond)})
			time.AfterFunc(1900*time.Millisecond, func() { _ = f.Advertise(some("a")) })
			set, took := first(t, f)
			require.Equal(t, "a", set)
			require.Equal(t, 2300*time.Millisecond, took)
			require.True(t, f.Status().Ready)
		})
	})
	t.Run("not for ever", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := start(t, Config{Checker: slow(time.Hour), StartupWait: time.Second})
			require.NoError(t, f.Advertise(some("a")))
			set, took := first(t, f)
			require.Equal(t, " | a", set)
			require.Equal(t, 6*time.Second, took)
		})
	})
	t.Run("not for what is remembered", func(t *testing.T) {
		t.Parallel()
		state := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			f := start(t, Config{StateDir: state})
			require.NoError(t, f.Advertise(some("a")))
			f.stop()
			f = start(t, Config{StateDir: state, Checker: slow(100 * time.Millisecond)})
			set, took := first(t, f)
			require.Equal(t, "a", set)
			require.Equal(t, 100*time.Millisecond, took)
		})
	})
	t.Run("and ends with its caller", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := start(t, Config{StartupWait: time.Hour})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := f.Services(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
	})
}

// byURL passes only services at good URLs, slowly.
type byURL struct{ good string }

func (c byURL) Check(ctx context.Context, s *rollcallv1.Service) error {
	if sleep(ctx, time.Second); s.GetWorkerRef().GetUrl() != c.good {
		return errors.New("not there")
	}
	return nil
}

func TestForeman_URLChangesBeforeTheVerdict_IsCheckedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, Config{Checker: byURL{"http://a:3000"}, StartupWait: -1, FirstVerdicts: time.Millisecond})
		require.NoError(t, f.Advertise(some("a")))
		pass(500 * time.Millisecond)
		moved := service("a")
		moved.WorkerRef.Url = "http://elsewhere:1"
		require.NoError(t, f.Advertise([]*rollcallv1.Service{moved}))
		pass(time.Minute)
		require.Equal(t, " | a", describe(f.set()))
		require.NoError(t, f.Advertise(some("a")))
		pass(time.Minute)
		require.Equal(t, "a", describe(f.set()))
	})
}

func TestForeman_ManyServices_LimitsConcurrentChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, Config{Checker: slow(time.Second), StartupWait: -1})
		var many []*rollcallv1.Service
		for i := range 3 * maxChecks {
			many = append(many, service(fmt.Sprintf("s-%d", i)))
		}
		require.NoError(t, f.Advertise(many))
		pass(1500 * time.Millisecond)
		f.mu.Lock()
		offered := 0
		for _, e := range f.entries {
			if e.offered {
				offered++
			}
		}
		f.mu.Unlock()
		require.Equal(t, maxChecks, offered)
		pass(2 * time.Second)
		require.Len(t, f.set().Services, 3*maxChecks)
	})
}

func TestNew_InvalidConfig_ReportsEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := New(Config{CheckPause: -1, Rescan: -1, Node: strings.Repeat("x", 300)})
	require.ErrorContains(t, err, "check pause: -1ns is negative")
	require.ErrorContains(t, err, "rescan")
	require.ErrorContains(t, err, "node: has 300 bytes")
}
