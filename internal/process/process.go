package process

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
	"github.com/rollcall-dev/rollcall/internal/platform/warnings"
)

// Role is a role of the binary. Fields without a default are required.
type Role struct {
	// Name is the role's name in the log, such as relayer. Traces have the service rollcall-relayer.
	Name   string
	Log    LogFlags
	Stderr io.Writer
	// Attrs are attributes of the lines about the start and the end, such as "node" and its id. Default: none.
	Attrs []any
	// Tracing is where spans are exported to. Default: the role makes no spans.
	Tracing *TracingFlags
	// LimitWarnings logs each cause of warnings once a minute, however many parts fail because of it.
	LimitWarnings bool
}

// Process is a role while it runs. Its methods are called by the role's function, in one goroutine, unless they state otherwise.
type Process struct {
	// Log is the role's log.
	Log *slog.Logger
	// Registry has the metrics of every process, and receives the role's.
	Registry *prometheus.Registry
	// Tracer makes the role's spans.
	Tracer trace.Tracer

	role      Role
	unlimited *slog.Logger // without LimitWarnings
	ctx       context.Context
	cancel    context.CancelCauseFunc
	order     []*step // what was started, in its order
	http      *step   // of Serve
	address   net.Addr
	started   bool

	mu             sync.Mutex
	stage, problem string        // of the start
	report         func() Health // nil until ReportHealth
}

// Server is an HTTP server that listens already.
type Server interface {
	Addr() net.Addr
	// Run serves until ctx ends, and finishes running requests within a limit of its own.
	Run(ctx context.Context) error
	Close() error
}

// Run runs a role until ctx ends or a stage fails. start opens the role's parts and calls Started. After its return, Run waits for the
// end, and stops everything in reverse order.
//
// Run returns nil if ctx ends, also before Started: the process was stopped while it waited for a database. Any other error is
// logged as the last line; see [IsLogged].
func (r Role) Run(ctx context.Context, start func(*Process) error) (err error) {
	log, last := r.Log.Logger(r.Stderr)
	defer last(r.Name+" failed", &err)
	p := &Process{Log: log, Registry: newRegistry(), Tracer: tracing.Off(), role: r, unlimited: log}
	if r.LimitWarnings {
		p.Log = slog.New(warnings.Limit(log.Handler()))
	}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	defer p.cancel(nil)
	if err := p.open(start); err != nil {
		p.fail(err)
	}
	<-p.ctx.Done()
	failed, _ := errors.AsType[*failure](context.Cause(p.ctx))
	if failed != nil {
		err = failed.error
	}
	stopped := p.stop(err)
	if failed != nil || p.started {
		if err = errors.Join(err, stopped); err != nil {
			return err
		}
	}
	p.Log.Info(r.Name+" stopped", append(r.Attrs, "cause", context.Cause(ctx))...) //nolint:sloglint // constant for a role
	return nil
}

// open opens what every role has, and then the role's parts.
func (p *Process) open(start func(*Process) error) error {
	if p.role.Tracing != nil {
		tracer, end, err := p.role.Tracing.open(p.ctx, "rollcall-"+strings.ToLower(p.role.Name), p.Log)
		if err != nil {
			return err
		}
		p.Tracer = tracer
		p.OnStop("tracing", 0, func() error { end(); return nil })
	}
	return start(p)
}

// failure is the error that ended the process.
type failure struct{ error }

func (f *failure) Unwrap() error { return f.error }

// fail ends the process because of an error, unless it ends already.
func (p *Process) fail(err error) { p.cancel(&failure{err}) }

// Context returns the context of the start. It ends when the process is told to stop, and when a stage fails.
func (p *Process) Context() context.Context { return p.ctx }

// Stage names the part of the start that begins.
func (p *Process) Stage(name string) {
	p.set(name, "")
	p.Log.Debug("starting", "stage", name)
}

// Waiting reports the problem that the stage waits for; anyone may read it. It is safe for concurrent use.
func (p *Process) Waiting(problem string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problem = problem
}

func (p *Process) set(stage, problem string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stage, p.problem = stage, problem
}

// Database begins the stage of the database, and returns a function for [postgres.Config] and [postgres.Migrations] that reports and
// logs why the database cannot be used yet.
func (p *Process) Database() func(error) {
	const stage = "database"
	p.Stage(stage)
	return postgres.LogWaiting(p.unlimited, func(class string) { p.set(stage, class) })
}

// Started logs that the role works, with its version, its HTTP address and attributes.
func (p *Process) Started(attrs ...any) {
	p.started = true
	line := append(append([]any{}, p.role.Attrs...), "version", Version())
	if p.address != nil {
		line = append(line, "http", p.address.String())
	}
	p.Log.Info(p.role.Name+" started", append(line, attrs...)...) //nolint:sloglint // constant for a role
}

// Serve serves HTTP from now on, and closes the server at the end. It is called once.
func (p *Process) Serve(web Server) {
	p.address = web.Addr()
	p.Log.Info("listening for HTTP", "http", p.address.String())
	p.http = p.goStage("HTTP", 0, web.Run)
	stop := p.http.stop
	p.http.stop = func() error { return errors.Join(stop(), web.Close()) }
}

// StopHTTPHere moves the end of HTTP to this place of the order: after what is started later, and before what was started earlier.
func (p *Process) StopHTTPHere() {
	p.order = append(slices.DeleteFunc(p.order, func(s *step) bool { return s == p.http }), p.http)
}
