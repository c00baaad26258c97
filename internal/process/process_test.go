package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/httpserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// journal records what happens, in its order.
type journal struct {
	mu     sync.Mutex
	events []string
}

func (j *journal) add(event string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, event)
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.events)
}

// part returns a part that runs until its context ends.
func (j *journal) part(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		j.add(name + " stopped")
		return nil
	}
}

func (j *journal) closer(name string) func() error {
	return func() error {
		j.add(name + " closed")
		return nil
	}
}

// web is an HTTP server without a socket.
type web struct{ *journal }

func (web) Addr() net.Addr                  { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 3000} }
func (w web) Run(ctx context.Context) error { return w.part("HTTP")(ctx) }
func (w web) Close() error                  { return w.closer("HTTP")() }

// logged returns the lines of a role's log, each as its message and its stage, and the last one whole.
func logged(t *testing.T, out string) (messages []string, last map[string]any) {
	t.Helper()
	for line := range strings.Lines(out) {
		last = map[string]any{}
		require.NoError(t, json.Unmarshal([]byte(line), &last), line)
		message, _ := last["msg"].(string)
		if stage, ok := last["stage"].(string); ok {
			message += " " + stage
		}
		messages = append(messages, message)
	}
	return messages, last
}

var errTold = errors.New("told to stop")

func TestRun_Stopped_StopsInReverseOrder(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	j := new(journal)
	ctx, stop := context.WithCancelCause(t.Context())
	err := Role{Name: "relayer", Stderr: &out, Attrs: []any{"pool", "p"}}.Run(ctx, func(p *Process) error {
		p.Serve(web{j})
		p.OnStop("database", 0, j.closer("database"))
		p.Go("nodes", 0, j.part("nodes"))
		p.Go("tracker", 0, j.part("tracker"))
		p.Started("keys", 3)
		stop(errTold)
		require.ErrorIs(t, context.Cause(p.Context()), errTold)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []string{"tracker stopped", "nodes stopped", "database closed", "HTTP stopped", "HTTP closed"}, j.all())
	messages, last := logged(t, out.String())
	require.Equal(t, []string{
		"listening for HTTP", "relayer started", "stage stopped tracker", "stage stopped nodes", "stage stopped database", "stage stopped HTTP", "relayer stopped",
	}, messages)
	require.Equal(t, "told to stop", last["cause"])
	require.Equal(t, "p", last["pool"])
	require.Regexp(t, `"msg":"relayer started","pool":"p","version":"[^"]+","http":"127.0.0.1:3000","keys":3}`, out.String())
}

// A stage has all that was started before it until it has stopped.
func TestRun_StageStops_AfterLaterOnes(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancelCause(t.Context())
	release := make(chan struct{})
	require.NoError(t, Role{Name: "relayer", Stderr: new(bytes.Buffer)}.Run(ctx, func(p *Process) error {
		var below context.Context
		ready := make(chan struct{})
		p.Go("nodes", 0, func(ctx context.Context) error {
			below = ctx
			close(ready)
			<-ctx.Done()
			return nil
		})
		p.Go("tracker", 0, func(ctx context.Context) error {
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), errTold)
			<-ready
			require.NoError(t, below.Err(), "the nodes were stopped before the tracker")
			<-release
			return nil
		}, func(ctx context.Context) error {
			<-ctx.Done() // both parts of a stage are told at the same time
			close(release)
			return nil
		})
		p.Started()
		stop(errTold)
		return nil
	}))
}

func TestStopHTTPHere_MovesTheEndOfHTTP(t *testing.T) {
	t.Parallel()
	j := new(journal)
	ctx, stop := context.WithCancel(t.Context())
	require.NoError(t, Role{Name: "coordinator", Stderr: new(bytes.Buffer)}.Run(ctx, func(p *Process) error {
		p.Serve(web{j})
		p.OnStop("node", 0, j.closer("node"))
		p.StopHTTPHere()
		p.Go("work", 0, j.part("work"))
		p.Started()
		stop()
		return nil
	}))
	require.Equal(t, []string{"work stopped", "HTTP stopped", "HTTP closed", "node closed"}, j.all())
}

func TestRun_StageFails_StopsAllAndReturnsIt(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	j := new(journal)
	failed, unclean := errors.New("the disk is full"), errors.New("not flushed")
	err := Role{Name: "coordinator", Stderr: &out}.Run(t.Context(), func(p *Process) error {
		p.Serve(web{j})
		p.OnStop("store", 0, func() error { return unclean })
		p.Go("node", 0, func(context.Context) error { return failed }, j.part("sibling"))
		p.Go("leader", 0, j.part("leader"))
		p.Started()
		return nil
	})
	require.ErrorIs(t, err, failed)
	require.ErrorIs(t, err, unclean, "the end has problems of its own")
	require.True(t, IsLogged(err))
	require.Equal(t, "the disk is full\nnot flushed", err.Error(), "each is reported once")
	require.Equal(t, []string{"leader stopped", "sibling stopped", "HTTP stopped", "HTTP closed"}, j.all())
	messages, last := logged(t, out.String())
	require.Equal(t, "coordinator failed", messages[len(messages)-1])
	require.Equal(t, "the disk is full\nnot flushed", last["err"])
	require.NotContains(t, messages, "coordinator stopped")
}

// The failure came first, and the process was told to stop while it ended.
func TestRun_StageFailsThenTold_ReturnsTheFailure(t *testing.T) {
	t.Parallel()
	failed := errors.New("the disk is full")
	ctx, stop := context.WithCancel(t.Context())
	require.ErrorIs(t, Role{Name: "coordinator", Stderr: new(bytes.Buffer)}.Run(ctx, func(p *Process) error {
		p.Started()
		p.Go("node", 0, func(context.Context) error { return failed })
		<-p.Context().Done()
		stop()
		return nil
	}), failed)
}

func TestRun_FailsAfterStopWasRequested_ReturnsIt(t *testing.T) {
	t.Parallel()
	failed := errors.New("not handed over")
	ctx, stop := context.WithCancel(t.Context())
	require.ErrorIs(t, Role{Name: "coordinator", Stderr: new(bytes.Buffer)}.Run(ctx, func(p *Process) error {
		p.Started()
		p.Go("node", 0, func(ctx context.Context) error {
			<-ctx.Done()
			return failed
		})
		stop()
		return nil
	}), failed)
}

func TestRun_StartFails_ClosesWhatIsOpen(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	j := new(journal)
	failed := errors.New("port in use")
	err := Role{Name: "gateway", Stderr: &out}.Run(t.Context(), func(p *Process) error {
		p.Serve(web{j})
		p.OnStop("folder", 0, j.closer("folder"))
		return failed
	})
	require.ErrorIs(t, err, failed)
	require.Equal(t, []string{"folder closed", "HTTP stopped", "HTTP closed"}, j.all())
	require.Regexp(t, `"msg":"gateway failed","err":"port in use"}\n$`, out.String())
}

// A process that is told to stop while it waits for its database has not failed.
func TestRun_StoppedDuringStart_IsNoFailure(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	j := new(journal)
	ctx, stop := context.WithCancelCause(t.Context())
	require.NoError(t, Role{Name: "API", Stderr: &out}.Run(ctx, func(p *Process) error {
		p.Serve(web{j})
		p.OnStop("database", 0, func() error { return errors.New("not connected yet") })
		stop(errTold)
		<-p.Context().Done()
		return p.Context().Err()
	}))
	require.Equal(t, []string{"HTTP stopped", "HTTP closed"}, j.all())
	require.Regexp(t, `"msg":"API stopped","cause":"told to stop"}\n$`, out.String())
}

// HTTP fails during the start. The start's error is only the effect.
func TestRun_HTTPFailsDuringStart_ReturnsItsError(t *testing.T) {
	t.Parallel()
	failed := errors.New("accept: too many open files")
	err := Role{Name: "API", Stderr: new(bytes.Buffer)}.Run(t.Context(), func(p *Process) error {
		p.Go("HTTP", 0, func(context.Context) error { return failed })
		<-p.Context().Done()
		return p.Context().Err()
	})
	require.EqualError(t, err, failed.Error())
}

// A stage does not stop. The others are stopped after its limit, and the process fails.
func TestRun_StageExceedsItsLimit_IsLeftBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		j := new(journal)
		ctx, stop := context.WithCancel(t.Context())
		hung := make(chan struct{})
		defer close(hung)
		began := time.Now()
		err := Role{Name: "consumer", Stderr: &out}.Run(ctx, func(p *Process) error {
			p.OnStop("database", 0, func() error { <-hung; return nil })
			p.OnStop("redis", 0, j.closer("redis"))
			p.Go("submissions", 5*time.Minute, func(context.Context) error { <-hung; return nil })
			p.Started()
			stop()
			return nil
		})
		require.EqualError(t, err, "submissions has not stopped within 5m0s\ndatabase has not stopped within 30s")
		require.Equal(t, 5*time.Minute+30*time.Second, time.Since(began))
		require.Equal(t, []string{"redis closed"}, j.all())
		messages, _ := logged(t, out.String())
		require.Contains(t, messages, "stage not stopped in time: the others are stopped without it submissions")
		require.NotContains(t, messages, "stage stopped submissions")
	})
}

// Health has the name of the stage, and the problem that it waits for, from the first second, and then what the role reports.
func TestServeHealth_ReportsStagesAndThenTheRole(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	ctx, stop := context.WithCancel(t.Context())
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	require.NoError(t, Role{Name: "consumer", Stderr: &out, LimitWarnings: true}.Run(ctx, func(p *Process) error {
		require.NoError(t, p.ServeHealth("127.0.0.1:0", nil))
		get := func(path string) (int, string) {
			res, err := client.Get("http://" + p.address.String() + path)
			require.NoError(t, err)
			body, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			return res.StatusCode, string(body)
		}
		reports := func(code int, want string) {
			t.Helper()
			for _, path := range []string{"/health", "/ready"} {
				got, body := get(path)
				require.Equal(t, code, got, path)
				require.JSONEq(t, want, body, path)
			}
		}
		require.Equal(t, "starting", p.Starting())
		reports(503, `{"ready": false, "status": "unhealthy", "reason": "starting", "components": {}}`)
		waiting := p.Database()
		require.Equal(t, "starting: database", p.Starting())
		reports(503, `{"ready": false, "status": "unhealthy", "reason": "starting: database", "components": {"database": "starting"}}`)
		waiting(&net.OpError{Op: "dial", Err: errors.New("connection refused")})
		require.Equal(t, "starting: database: unreachable", p.Starting())
		reports(503, `{"ready": false, "status": "unhealthy", "reason": "starting: database: unreachable", "components": {"database": "unreachable"}}`)
		p.Stage("chain")
		reports(503, `{"ready": false, "status": "unhealthy", "reason": "starting: chain", "components": {"chain": "starting"}}`)
		p.ReportHealth(func() Health {
			return Health{Ready: true, Status: "degraded", Components: map[string]string{"queue": "unavailable"}}
		})
		reports(200, `{"ready": true, "status": "degraded", "components": {"queue": "unavailable"}}`)
		code, metrics := get("/metrics")
		require.Equal(t, 200, code)
		require.Contains(t, metrics, "rollcall_build_info")
		p.Started()
		stop()
		return nil
	}))
	require.Contains(t, out.String(), `"msg":"waiting for the database","err":"dial: connection refused"`)
}

// HTTP answers while the role starts, and its port is closed when Run returns.
func TestServe_AnswersUntilTheEnd(t *testing.T) {
	t.Parallel()
	var address string
	ctx, stop := context.WithCancel(t.Context())
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	require.NoError(t, Role{Name: "API", Stderr: new(bytes.Buffer)}.Run(ctx, func(p *Process) error {
		web, err := httpserver.Open(p.Context(), httpserver.Config{
			Listen: "127.0.0.1:0", Connections: 4, Stop: time.Second, Logger: p.Log, HTTP: &http.Server{Handler: p.Metrics(), ReadHeaderTimeout: time.Minute},
		})
		require.NoError(t, err)
		p.Serve(web)
		address = web.Addr().String()
		res, err := client.Get("http://" + address)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusOK, res.StatusCode)
		stop()
		return p.Context().Err()
	}))
	_, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	require.Error(t, err)
}

// The role's function has returned, and the role works until it is told to stop.
func TestRun_Started_WorksUntilTold(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	started, worked, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- Role{Name: "relayer", Stderr: new(bytes.Buffer)}.Run(ctx, func(p *Process) error {
			p.Go("work", 0, func(ctx context.Context) error {
				<-started
				select {
				case <-ctx.Done():
					return errors.New("stopped before it was told to")
				case worked <- struct{}{}:
				}
				<-ctx.Done()
				return nil
			})
			p.Started()
			return nil
		})
	}()
	select {
	case err := <-ended:
		require.Fail(t, "the role ended by itself", "%v", err)
	case <-time.After(50 * time.Millisecond): // one that ends by itself does so at once
	}
	close(started)
	<-worked
	stop()
	require.NoError(t, <-ended)
}

func TestRun_LimitWarnings_LogsACauseOnce(t *testing.T) {
	t.Parallel()
	for limited, want := range map[bool]int{true: 1, false: 2} {
		var out bytes.Buffer
		require.Error(t, Role{Name: "API", Stderr: &out, LimitWarnings: limited}.Run(t.Context(), func(p *Process) error {
			for range 2 {
				p.Log.Warn("not read", "err", errors.New("connection refused"))
			}
			return errors.New("done")
		}))
		require.Equal(t, want, strings.Count(out.String(), "not read"))
	}
}

// The log has how traces are sampled, and the variables of the environment that flags replace: other programs use them.
func TestRun_FlagsReplaceVariables_LogsThem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env  map[string]string
		args []string
		want string
	}{
		{want: `"sampler":"parentbased_traceidratio","ratio":1}`},
		{
			map[string]string{"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}, nil,
			`"sampler":"traceidratio","ratio":0.5}`,
		},
		{
			map[string]string{"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}, []string{"--trace-ratio=0.25"},
			`"sampler":"traceidratio","ratio":0.25,"replaced":["OTEL_TRACES_SAMPLER_ARG"]`,
		},
		{
			map[string]string{"OTEL_TRACES_SAMPLER": "traceidratio"}, []string{"--trace-ratio=0.25"},
			`"sampler":"traceidratio","ratio":0.25}`,
		},
	} {
		var command tracingCommand
		parser, err := config.New(&command, config.Options{Name: "rollcall", LookupEnv: func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }})
		require.NoError(t, err)
		_, err = parser.Parse(append(c.args, "--otlp-endpoint=http://127.0.0.1:1"))
		require.NoError(t, err)
		var out bytes.Buffer
		require.Error(t, Role{Name: "API", Stderr: &out, Tracing: &command.Tracing}.Run(t.Context(), func(*Process) error { return errors.New("done") }))
		require.Contains(t, out.String(), `"msg":"exporting traces",`+c.want)
	}
	var out bytes.Buffer
	require.Error(t, Role{Name: "API", Stderr: &out, Tracing: new(TracingFlags)}.Run(t.Context(), func(*Process) error { return errors.New("done") }))
	require.NotContains(t, out.String(), "exporting traces")
}

type tracingCommand struct {
	Tracing TracingFlags `embed:""`
}

func (c *tracingCommand) Check(p *config.Problems) { c.Tracing.CheckFlags(p) }

// The spans of a role are exported when Run returns, with the names that its flags give.
func TestRun_Tracing_ExportsAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags   TracingFlags
		want    []string
		without string
	}{
		{flags: TracingFlags{Ratio: 1}, want: []string{"rollcall-api"}},
		{flags: TracingFlags{Ratio: 1, Service: "shop", Attributes: "team=payments"}, want: []string{"shop", "payments"}, without: "rollcall-api"},
		{flags: TracingFlags{Ratio: 0, Sampler: "always_on"}, want: []string{"rollcall-api"}},
	} {
		bodies := make(chan string, 10)
		receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			bodies <- string(body)
		}))
		c.flags.Endpoint = receiver.URL
		ctx, stop := context.WithCancel(t.Context())
		require.NoError(t, Role{Name: "API", Stderr: new(bytes.Buffer), Tracing: &c.flags}.Run(ctx, func(p *Process) error {
			p.Started()
			_, span := p.Tracer.Start(ctx, "relay")
			span.End()
			stop()
			return nil
		}))
		receiver.Close()
		require.Len(t, bodies, 1, "nothing was exported")
		body := <-bodies
		for _, want := range append(c.want, "relay") {
			require.Contains(t, body, want)
		}
		if c.without != "" {
			require.NotContains(t, body, c.without)
		}
	}
}
