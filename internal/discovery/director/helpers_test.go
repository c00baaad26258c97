package director

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/fsm"
	"github.com/rollcall-dev/rollcall/internal/discovery/health"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror/mirrortest"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// directory is a real directory, written as a coordinator would.
type directory struct {
	*fsm.Machine
	mu    sync.Mutex
	index uint64
}

func newDirectory(epoch uint64) *directory {
	d := &directory{Machine: fsm.New()}
	d.do(&rollcallv1.Operation{Kind: &rollcallv1.Operation_LeaderEstablished{
		LeaderEstablished: &rollcallv1.LeaderEstablished{Node: "n-1", Cluster: "c-1", AtLeast: epoch},
	}})
	return d
}

func (d *directory) do(ops ...*rollcallv1.Operation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	data, err := proto.Marshal(&rollcallv1.Command{Operations: ops})
	if err != nil {
		panic(err)
	}
	d.index++
	for _, r := range d.Apply(&raft.Log{Index: d.index, Term: 1, Data: data}).([]fsm.Result) {
		if r.Err != nil {
			panic(r.Err)
		}
	}
}

func (d *directory) fence() *rollcallv1.WriteFence {
	return &rollcallv1.WriteFence{Owner: fsm.Operator.Proto(), Epoch: d.State().Epoch()}
}

func registerOp(fence *rollcallv1.WriteFence, services ...*rollcallv1.Service) *rollcallv1.Operation {
	op := &rollcallv1.RegisterOperation{Fence: fence}
	for _, s := range services {
		raw, err := fsm.EncodeService(s)
		if err != nil {
			panic(err)
		}
		op.Services = append(op.Services, raw)
	}
	return &rollcallv1.Operation{Kind: &rollcallv1.Operation_Register{Register: op}}
}

func deregisterOp(fence *rollcallv1.WriteFence, ids ...string) *rollcallv1.Operation {
	return &rollcallv1.Operation{Kind: &rollcallv1.Operation_Deregister{
		Deregister: &rollcallv1.DeregisterOperation{Fence: fence, Ids: ids},
	}}
}

func (d *directory) register(services ...*rollcallv1.Service) {
	d.do(registerOp(d.fence(), services...))
}
func (d *directory) deregister(ids ...string) { d.do(deregisterOp(d.fence(), ids...)) }

func url(id string) string { return "http://" + id + ":3000" }

func relayer(id string) *rollcallv1.Service { return entry(id, "relayer", url(id), nil) }

func entry(id, kind, url string, labels map[string]string) *rollcallv1.Service {
	return &rollcallv1.Service{Id: id, Kind: kind, WorkerRef: &rollcallv1.WorkerRef{Url: url, Labels: labels}}
}

// relayers returns n relayers named a-00, a-01, …
func relayers(n int) (services []*rollcallv1.Service) {
	for i := range n {
		services = append(services, relayer(fmt.Sprintf("a-%02d", i)))
	}
	return services
}

// network defines the services' responses by URL. The default is healthy at once.
type network struct {
	mu      sync.Mutex
	answers map[string]func(context.Context) error
	checks  map[string]int
}

func newNetwork() *network {
	return &network{answers: make(map[string]func(context.Context) error), checks: make(map[string]int)}
}

func (n *network) probe(ctx context.Context, t health.Target) error {
	n.mu.Lock()
	n.checks[t.URL]++
	answer := n.answers[t.URL]
	if answer == nil {
		answer = n.answers["*"]
	}
	n.mu.Unlock()
	if answer == nil {
		return nil
	}
	return answer(ctx)
}

// set sets the response of URLs; "*" is the default for all other URLs.
func (n *network) set(answer func(context.Context) error, urls ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, url := range urls {
		n.answers[url] = answer
	}
}

func (n *network) checked(url string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.checks[url]
}

func refuses(context.Context) error { return errors.New("connection refused") }

func hangs(ctx context.Context) error {
	<-ctx.Done()
	return errors.New("no answer")
}

func slow(d time.Duration, err error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return errors.New("no answer")
		case <-time.After(d):
			return err
		}
	}
}

// bench has a director and its environment.
type bench struct {
	*Director
	t       *testing.T
	dir     *directory
	net     *network
	redis   *mirrortest.Memory
	deposed atomic.Bool
	logs    *logs
	stop    func() error
	wait    func() error // waits for its end
}

// setup builds a bench and fills in defaults. start runs it.
func setup(t *testing.T, cfg Config) *bench {
	t.Helper()
	b := &bench{t: t, net: newNetwork(), redis: mirrortest.NewMemory(), logs: new(logs)}
	if cfg.Epoch == 0 {
		cfg.Epoch = 1
	}
	if cfg.Directory == nil {
		b.dir = newDirectory(cfg.Epoch)
		cfg.Directory = b.dir
	}
	cfg.Cluster, cfg.Node = "c-1", "n-1"
	cfg.Confirm = func(context.Context) error {
		if b.deposed.Load() {
			return errors.New("another term has begun")
		}
		return nil
	}
	cfg.Health.Probe = b.net.probe
	if cfg.Mirror.Store == nil {
		cfg.Mirror.Store = b.redis
	}
	cfg.Logger = slog.New(slog.NewJSONHandler(b.logs, nil))
	var err error
	b.Director, err = New(cfg)
	require.NoError(t, err)
	return b
}

// start runs the director until stop is called or the test ends.
func (b *bench) start() *bench {
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := b.Run(ctx)
		done <- err
	}()
	b.wait = sync.OnceValue(func() error { return <-done })
	b.stop = func() error {
		cancel()
		return b.wait()
	}
	b.t.Cleanup(func() { _ = b.stop() })
	return b
}

// active returns the relayers that are listed in Redis.
func (b *bench) active() []string { return b.redis.Members("relayer:active") }

func (b *bench) directorState() string {
	return strings.ToLower(strings.TrimPrefix(b.Status().Director.String(), "DIRECTOR_STATE_"))
}

// of returns the status of a service, or nil.
func (b *bench) of(id string) *rollcallv1.ServiceStatus {
	for _, s := range b.Status().Services {
		if s.Id == id {
			return s
		}
	}
	return nil
}

// neverRemoved fails the test if a write removed one of the ids.
func (b *bench) neverRemoved(ids ...string) {
	b.t.Helper()
	for _, w := range b.redis.Log() {
		for _, change := range w.Sets {
			for _, m := range change.Remove {
				require.NotContains(b.t, ids, m.ID, "epoch %d seq %d: %s", w.Token.Epoch, w.Token.Seq, m.Reason)
			}
		}
	}
}

// pause advances fake time, and waits until everything due then has happened.
func pause(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// logs collects log lines.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// with returns the lines with the message, as attributes.
func (l *logs) with(msg string) (lines []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		var attrs map[string]any
		if err := json.Unmarshal([]byte(line), &attrs); err != nil {
			panic(err)
		}
		if attrs["msg"] == msg {
			lines = append(lines, attrs)
		}
	}
	return lines
}

func (l *logs) relayers(msg string) (ids []string) {
	for _, line := range l.with(msg) {
		ids = append(ids, line["service"].(string))
	}
	slices.Sort(ids)
	return ids
}

// snapshot returns a snapshot of a directory, as Raft would restore it.
func (d *directory) snapshot() io.ReadCloser {
	s, err := d.Snapshot()
	if err != nil {
		panic(err)
	}
	sink := new(memorySink)
	if err := s.Persist(sink); err != nil {
		panic(err)
	}
	return io.NopCloser(&sink.Buffer)
}

type memorySink struct{ bytes.Buffer }

func (*memorySink) ID() string    { return "snapshot" }
func (*memorySink) Cancel() error { return nil }
func (*memorySink) Close() error  { return nil }
