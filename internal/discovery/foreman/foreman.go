package foreman

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Config configures the sources of definitions and the first offer of services.
type Config struct {
	// Folder holds the definition files; none by default.
	Folder string
	// StateDir is the folder for stored definitions, created if missing; by default nothing is stored.
	StateDir string
	// Node is the default for worker_ref.node in definitions.
	Node string
	// Checker decides when a service is first offered; without one it is offered at once.
	Checker Checker
	// CheckPause is the longest pause between checks of a service not offered yet; 5 s by default. The first pause is
	// a tenth of it.
	CheckPause time.Duration
	// StartupWait is how long the first set waits for advertisements if there is no stored state; 2 s by default,
	// negative for no wait.
	StartupWait time.Duration
	// FirstVerdicts is how long the first set waits until each service has been checked once; 5 s by default.
	FirstVerdicts time.Duration
	// MissingFilesGrace is how long services stay defined when all files of the folder are gone at once; 1 min by
	// default, negative for no grace.
	MissingFilesGrace time.Duration
	// Rescan is how often the folder is read even if the system reports no change; 10 s by default.
	Rescan time.Duration
	// Logger receives the foreman's log; by default there is none.
	Logger *slog.Logger
	// Metrics are not published by default.
	Metrics *Metrics
}

func (c *Config) validate() error {
	c.CheckPause = cmp.Or(c.CheckPause, 5*time.Second)
	c.StartupWait = cmp.Or(c.StartupWait, 2*time.Second)
	c.FirstVerdicts = cmp.Or(c.FirstVerdicts, 5*time.Second)
	c.MissingFilesGrace = cmp.Or(c.MissingFilesGrace, time.Minute)
	c.Rescan = cmp.Or(c.Rescan, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
	var errs []error
	for name, d := range map[string]time.Duration{"check pause": c.CheckPause, "first verdicts": c.FirstVerdicts, "rescan": c.Rescan} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s: %v is negative", name, d))
		}
	}
	if n := len(c.Node); n > rollcallv1.MaxNodeBytes {
		errs = append(errs, fmt.Errorf("node: has %d bytes, at most %d are allowed", n, rollcallv1.MaxNodeBytes))
	}
	return errors.Join(errs...)
}

// entry is a service that a file or process defines.
type entry struct {
	service *rollcallv1.Service
	origin  string // name of the file, empty for an advertisement
	offered bool
	checks  int // before it was offered
	checked time.Time
	err     error // of the last check
	stop    context.CancelFunc
}

// Foreman is the source of a gateway: the services that this host defines, while Run runs. It is safe for concurrent
// use.
type Foreman struct {
	cfg         Config
	log         *slog.Logger
	changed     chan struct{} // buffer of one: the set has changed
	firstChecks chan struct{} // buffer of one: a service was checked for the first time
	ready       chan struct{} // closed when the first set is available
	slots       chan struct{} // one value per running check
	checks      sync.WaitGroup

	// writing is held while definitions change, so that the stored state matches the state in use.
	writing sync.Mutex

	mu         sync.Mutex
	life       context.Context // of Run, nil before
	remembered bool            // the definitions include an earlier run's stored state
	folder     folder
	folderErr  error
	stateErr   error // why the last change could not be stored
	advertised map[string]*rollcallv1.Service
	// skipped are stored advertisements that are not in use, by id, until news of the id.
	skipped  map[string]skipped
	entries  map[string]*entry
	shadowed map[string][]string // by file name, empty for advertisements: ids that an earlier file defines
}

// New loads the stored state. The Foreman does nothing else before Run.
func New(cfg Config) (*Foreman, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("foreman: %w", err)
	}
	f := &Foreman{
		cfg:         cfg,
		log:         cfg.Logger.With("component", "foreman"),
		changed:     make(chan struct{}, 1),
		firstChecks: make(chan struct{}, 1),
		ready:       make(chan struct{}),
		slots:       make(chan struct{}, maxChecks),
		folder:      folder{files: map[string]file{}},
		advertised:  map[string]*rollcallv1.Service{},
		skipped:     map[string]skipped{},
		entries:     map[string]*entry{},
	}
	if err := f.loadState(); err != nil {
		return nil, fmt.Errorf("foreman: recall what was advertised: %w", err)
	}
	return f, nil
}

// skipped is a stored advertisement that is not in use. It stays stored, so that the set stays incomplete after a restart, too.
type skipped struct {
	definition definition
	fault      error
}

func (f *Foreman) loadState() error {
	if f.cfg.StateDir == "" {
		return nil
	}
	if err := errors.Join(os.MkdirAll(f.cfg.StateDir, 0o700), removeTemp(f.cfg.StateDir)); err != nil {
		return err
	}
	m, err := loadState(f.cfg.StateDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// There is no stored state, which must not be stored as an empty one. But a state folder that cannot be
		// written must be reported now, not when the first process advertises.
		return writable(f.cfg.StateDir)
	case err != nil:
		return err
	}
	f.remembered = true
	if f.cfg.Folder != "" {
		for name, d := range m.Files {
			all := services(d)
			if err := check(all); err != nil {
				// The file itself is read next. Until it has a good version, the set is incomplete.
				f.folder.files[name] = file{err: err, since: time.Now()}
				f.log.Error("stored version of a definition file is not valid; it is skipped", "file", name, "err", err)
				continue
			}
			f.folder.files[name] = file{services: all, known: true}
		}
	}
	for _, d := range m.Advertised {
		s := d.service()
		id := s.GetId()
		err := check([]*rollcallv1.Service{s})
		if err == nil && f.advertised[id] != nil {
			err = errors.New("is stored twice")
		}
		if err != nil {
			// The gateway starts all the same, because the other services need it.
			f.skipped[id] = skipped{d, err}
			f.log.Error("stored advertisement is not valid; it is skipped", "service", id, "err", err)
			continue
		}
		f.advertised[id] = s
	}
	f.reconcile()
	f.log.Info("definitions recalled", "files", len(f.folder.files), "advertised", len(f.advertised), "skipped", len(f.skipped))
	return nil
}

// Run watches the folder and checks services until ctx ends. It may be called once.
func (f *Foreman) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer func() {
		f.mu.Lock()
		cancel() // with f.mu held, so that no check starts after Wait
		f.mu.Unlock()
		watching.Wait()
		f.checks.Wait()
	}()
	f.mu.Lock()
	f.life = ctx
	for id, e := range f.entries {
		f.startCheckLocked(id, e)
	}
	f.mu.Unlock()

	scanned := make(chan struct{})
	watching.Go(func() { f.watchFolder(ctx, scanned) })
	select {
	case <-scanned:
	case <-ctx.Done():
		return nil
	}
	if !f.remembered && f.cfg.StartupWait > 0 && !sleep(ctx, f.cfg.StartupWait) {
		return nil
	}
	f.awaitVerdicts(ctx)
	close(f.ready)
	<-ctx.Done()
	return nil
}

// Services implements gateway.Source. The first call waits until the folder was read, StartupWait is over, and each
// service was checked once.
func (f *Foreman) Services(ctx context.Context) (gateway.Set, error) {
	select {
	case <-f.ready:
	case <-ctx.Done():
		return gateway.Set{}, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	set := gateway.Set{Complete: f.completeLocked()}
	for _, id := range slices.Sorted(maps.Keys(f.entries)) {
		if e := f.entries[id]; e.offered {
			set.Services = append(set.Services, e.service)
		} else {
			set.NotReady = append(set.NotReady, e.service)
		}
	}
	return set, nil
}

// Changed implements gateway.Source.
func (f *Foreman) Changed() <-chan struct{} { return f.changed }

// completeLocked reports whether the entries are certainly all definitions of this host.
func (f *Foreman) completeLocked() bool {
	if len(f.skipped) > 0 {
		return false
	}
	for _, file := range f.folder.files {
		if !file.known {
			return false
		}
	}
	return f.remembered || f.folderErr == nil && len(f.entries) > 0
}

func (f *Foreman) withNode(s *rollcallv1.Service) *rollcallv1.Service {
	if f.cfg.Node == "" || s.GetWorkerRef() == nil || s.GetWorkerRef().GetNode() != "" {
		return s
	}
	s = proto.CloneOf(s)
	s.WorkerRef.Node = f.cfg.Node
	return s
}

// reconcile updates the entries from files and advertisements. The caller holds f.mu, or has the only reference.
func (f *Foreman) reconcile() {
	want := map[string]*entry{}
	shadowed := map[string][]string{}
	define := func(origin string, s *rollcallv1.Service) {
		if want[s.GetId()] != nil {
			shadowed[origin] = append(shadowed[origin], s.GetId())
			return
		}
		want[s.GetId()] = &entry{service: f.withNode(s), origin: origin}
	}
	for _, name := range slices.Sorted(maps.Keys(f.folder.files)) {
		for _, s := range f.folder.files[name].services {
			define(name, s)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(f.advertised)) {
		define("", f.advertised[id])
	}
	for origin, ids := range shadowed {
		if !slices.Equal(ids, f.shadowed[origin]) {
			f.log.Warn("services are defined twice; the definition of the first file by name is used",
				"file", cmp.Or(origin, "(advertised)"), "services", strings.Join(ids, " "))
		}
	}
	f.shadowed = shadowed

	news := false
	for id, e := range f.entries {
		if want[id] == nil {
			f.log.Info("service no longer defined", "service", id)
			if e.stop != nil {
				e.stop()
			}
			delete(f.entries, id)
			news = true
		}
	}
	for id, w := range want {
		e := f.entries[id]
		if e == nil {
			w.offered = f.cfg.Checker == nil
			f.entries[id] = w
			f.log.Info("service defined", "service", id, "kind", w.service.GetKind(), "url", w.service.GetWorkerRef().GetUrl(),
				"file", w.origin)
			f.startCheckLocked(id, w)
			news = news || w.offered
			continue
		}
		e.origin = w.origin
		if !proto.Equal(e.service, w.service) {
			e.service = w.service
			news = true
		}
	}
	f.countLocked()
	if news {
		signal(f.changed)
	}
}

func (f *Foreman) countLocked() {
	offered, broken := 0, 0
	for _, e := range f.entries {
		if e.offered {
			offered++
		}
	}
	for _, file := range f.folder.files {
		if file.err != nil {
			broken++
		}
	}
	f.cfg.Metrics.count(offered, len(f.entries)-offered, len(f.folder.files)-broken, broken)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sleep reports whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
