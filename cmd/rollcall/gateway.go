package main

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/discovery/clusterport"
	"github.com/rollcall-dev/rollcall/internal/discovery/foreman"
	"github.com/rollcall-dev/rollcall/internal/discovery/health"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/process"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// gatewayCmd runs a gateway until it is told to stop.
type gatewayCmd struct {
	Config string `env:"ROLLCALL_CONFIG" placeholder:"FILE" help:"YAML file of settings, by the names of these flags."`

	ID                string        `env:"ROLLCALL_GATEWAY_ID" group:"Gateway" help:"This gateway's id, a DNS label; always the same, and of this gateway only."`
	Coordinators      []string      `env:"ROLLCALL_COORDINATORS" default:"127.0.0.1:7400" placeholder:"HOST:PORT" group:"Gateway" help:"Cluster ports of the coordinators."`
	Definitions       string        `env:"ROLLCALL_DEFINITIONS" default:"services" placeholder:"FOLDER" group:"Gateway" help:"Folder of YAML and JSON files that define services; watched."`
	Listen            string        `env:"ROLLCALL_GATEWAY_LISTEN" default:"127.0.0.1:7401" group:"Gateway" help:"Address at which local processes advertise services, and of /healthz, /readyz and /metrics."`
	AllowRemote       bool          `env:"ROLLCALL_GATEWAY_ALLOW_REMOTE" group:"Gateway" help:"Listen at other than loopback addresses too: every process that reaches them may advertise services."`
	Hosts             []string      `env:"ROLLCALL_GATEWAY_HOSTS" placeholder:"NAME" group:"Gateway" help:"Names besides localhost by which processes may call it."`
	StateDir          string        `env:"ROLLCALL_GATEWAY_STATE_DIR" default:"gateway-data" placeholder:"FOLDER" group:"Gateway" help:"Folder to remember advertised services in, so that a restart forgets none."`
	MissingFilesGrace time.Duration `env:"ROLLCALL_MISSING_FILES_GRACE" default:"1m" min:"0s" max:"24h" group:"Gateway" help:"How long services stay when all of several definition files are gone at once, as while a deployment replaces them; the removal of a single file counts at once."`
	Host              string        `env:"ROLLCALL_HOST" group:"Gateway" help:"This host's name, for services that do not give one; the system's by default."`
	DeregisterOnStop  bool          `env:"ROLLCALL_DEREGISTER_ON_STOP" group:"Gateway" help:"Deregister everything on a stop signal: for a host that will not be back."`

	PingInterval      time.Duration `env:"ROLLCALL_PING_INTERVAL" default:"500ms" min:"10ms" max:"1m" group:"Timing" help:"Time between two pings of a known leader."`
	DiscoveryInterval time.Duration `env:"ROLLCALL_DISCOVERY_INTERVAL" default:"50ms" min:"10ms" max:"1m" group:"Timing" help:"Time between two rounds of pings while none is known."`
	PingTimeout       time.Duration `env:"ROLLCALL_PING_TIMEOUT" default:"200ms" min:"10ms" max:"1m" group:"Timing" help:"Time a ping may take."`
	StartupWait       time.Duration `env:"ROLLCALL_STARTUP_WAIT" default:"2s" min:"0s" max:"10m" group:"Timing" help:"How long the first start, with nothing remembered, waits for processes to advertise before it registers the host's services."`
	ResyncInterval    time.Duration `env:"ROLLCALL_RESYNC_INTERVAL" default:"1m" min:"1s" max:"2m" group:"Timing" help:"Time between two registrations of everything."`

	Health probeFlags       `embed:"" prefix:"health-check-" group:"Checks before a service is first offered, as the coordinators have them"`
	TLS    cli.TLSFlags     `embed:"" prefix:"tls-" group:"TLS"`
	Log    process.LogFlags `embed:"" prefix:"log-" group:"Log"`
}

// Check reports what is wrong with the settings together.
func (c *gatewayCmd) Check(p *config.Problems) {
	if err := rollcallv1.CheckDNSLabel(c.ID); err != nil {
		p.Addf(&c.ID, "", "%v", err)
	}
	if len(c.Coordinators) == 0 {
		p.Addf(&c.Coordinators, "give addresses such as coordinator-1:7400", "is missing")
	}
	cli.CheckAddresses(p, &c.Coordinators)
	cli.CheckListen(p, &c.Listen, "127.0.0.1:7401")
	if host, _, err := cli.SplitHostPort(c.Listen); err == nil && !c.AllowRemote && host != "localhost" && !net.ParseIP(host).IsLoopback() {
		p.Addf(&c.Listen, "listen at 127.0.0.1, or give --allow-remote: every process that reaches it may register services", "%q is not a loopback address", c.Listen)
	}
	checkRef(p, &c.Host, "x", &rollcallv1.WorkerRef{Url: "tcp://x:1", Node: c.Host})
	c.Health.check(p)
	c.TLS.CheckFlags(p)
}

// config of the gateway, without what only runs.
func (c *gatewayCmd) config() gateway.Config {
	return gateway.Config{
		ClientConfig: gateway.ClientConfig{
			Coordinators: c.Coordinators, PingInterval: c.PingInterval, DiscoveryInterval: c.DiscoveryInterval, PingTimeout: c.PingTimeout,
		},
		ID:               c.ID,
		ResyncInterval:   c.ResyncInterval,
		DeregisterOnStop: c.DeregisterOnStop,
	}
}

func (c *gatewayCmd) foremanConfig() (foreman.Config, error) {
	node := c.Host
	if node == "" {
		var err error
		if node, err = os.Hostname(); err != nil {
			return foreman.Config{}, cli.WithFix(err, "Give the host's name with --host.")
		}
	}
	return foreman.Config{
		Folder: c.Definitions, StateDir: c.StateDir, Node: node, Checker: localChecker{c.Health.config()},
		MissingFilesGrace: cmp.Or(c.MissingFilesGrace, -1), StartupWait: cmp.Or(c.StartupWait, -1), // 0 is none here, and the default there
	}, nil
}

// localChecker asks a service from this host, by the rules of the leader's checks.
type localChecker struct{ cfg health.Config }

func (l localChecker) Check(ctx context.Context, s *rollcallv1.Service) error {
	return health.Check(ctx, l.cfg, s.GetWorkerRef().GetUrl())
}

// Run runs a gateway until ctx ends. The foreman holds the services of this host, which local processes report over HTTP. The
// gateway keeps them registered.
func (c *gatewayCmd) Run(ctx context.Context, con *cli.Console) error {
	return process.Role{Name: "gateway", Log: c.Log, Stderr: con.Stderr, Attrs: []any{"gateway", c.ID}}.Run(ctx, c.start)
}

// start opens a gateway's parts and starts its stages.
func (c *gatewayCmd) start(p *process.Process) error {
	web, err := foreman.Open(foreman.ServerConfig{
		Listen: c.Listen, AllowRemote: c.AllowRemote, Hosts: c.Hosts, Metrics: p.Metrics(), Starting: p.Starting, Logger: p.Log,
	})
	if err != nil {
		return err
	}
	p.Serve(web)
	p.Stage("state folder")
	source, err := c.foremanConfig()
	if err != nil {
		return err
	}
	source.Logger, source.Metrics = p.Log, foreman.NewMetrics(p.Registry)
	f, err := foreman.New(source)
	if err != nil {
		return err
	}
	p.Stage("settings")
	cfg := c.config()
	cfg.Source, cfg.Logger = f, p.Log
	watchGateway(&cfg, p.Registry)
	material, err := c.TLS.Load(clusterport.TLSConfig{Logger: p.Log})
	if err != nil {
		return err
	}
	if material != nil {
		cfg.TLS = material.ClientConfig(clusterport.ALPNgRPC)
	}
	g, err := gateway.New(cfg)
	if err != nil {
		return err
	}
	web.Start(foreman.Parts{Foreman: f, Gateway: g.Status, Ready: func() error { return inSync(g.Status()) }})
	p.Started("coordinators", c.Coordinators, "definitions", c.Definitions, "tls", material != nil)
	p.Go("gateway", 0, f.Run, g.Run)
	p.StopHTTPHere()
	return nil
}

// inSync says why the directory does not hold what is defined here; nil when it does.
func inSync(s gateway.Status) error {
	switch {
	case s.Err != nil:
		return s.Err
	case !s.Synced:
		return errors.New("nothing is registered with the present leader yet")
	}
	return nil
}

// watchGateway has the gateway count what it does.
func watchGateway(cfg *gateway.Config, reg prometheus.Registerer) {
	factory := promauto.With(reg)
	leaders := factory.NewCounter(prometheus.CounterOpts{Name: "rollcall_gateway_leader_changes_total", Help: "Leaders, and epochs of one, found."})
	epoch := factory.NewGauge(prometheus.GaugeOpts{Name: "rollcall_gateway_epoch", Help: "Epoch of the last leader found."})
	writes := factory.NewCounterVec(prometheus.CounterOpts{Name: "rollcall_gateway_writes_total", Help: "Writes that the directory accepted, by kind: a full set, or changes."}, []string{"kind"})
	full, delta := writes.WithLabelValues("full"), writes.WithLabelValues("delta")
	duration := factory.NewHistogram(prometheus.HistogramOpts{
		Name: "rollcall_gateway_write_duration_seconds", Help: "Duration of a write, with the search for the leader and repetitions.",
		Buckets: prometheus.ExponentialBuckets(0.001, 3, 9),
	})
	last := factory.NewGauge(prometheus.GaugeOpts{Name: "rollcall_gateway_last_write_timestamp_seconds", Help: "When the directory last accepted a write."})
	failures := factory.NewCounter(prometheus.CounterOpts{Name: "rollcall_gateway_errors_total", Help: "Attempts to bring the directory up to date that did not succeed."})
	refused := factory.NewGauge(prometheus.GaugeOpts{Name: "rollcall_gateway_refused_services", Help: "Services defined here that the directory refuses."})

	cfg.OnLeader = func(l gateway.Leader) {
		leaders.Inc()
		epoch.Set(float64(l.Epoch))
	}
	cfg.OnWrite = func(w gateway.Write) {
		if w.FullSet {
			full.Inc()
		} else {
			delta.Inc()
		}
		duration.Observe(w.Took.Seconds())
		last.SetToCurrentTime()
	}
	cfg.OnError = func(error) { failures.Inc() }
	cfg.OnRefused = func(r []gateway.Refusal) { refused.Set(float64(len(r))) }
}
