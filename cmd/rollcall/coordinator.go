package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	metrics "github.com/hashicorp/go-metrics"
	metricsprom "github.com/hashicorp/go-metrics/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/discovery/clusterport"
	"github.com/rollcall-dev/rollcall/internal/discovery/coordinator"
	"github.com/rollcall-dev/rollcall/internal/discovery/director"
	"github.com/rollcall-dev/rollcall/internal/discovery/health"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/discovery/status"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
	"github.com/rollcall-dev/rollcall/internal/process"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// coordinatorCmd runs a coordinator until it is told to stop.
type coordinatorCmd struct {
	Config string `env:"ROLLCALL_CONFIG" placeholder:"FILE" help:"YAML file of settings, by the names of these flags."`

	cli.NodeFlags    `embed:"" group:"Node"`
	BootstrapWithout []string     `group:"Node" env:"ROLLCALL_BOOTSTRAP_WITHOUT" placeholder:"ID" help:"Coordinators that the very first start does not wait for, because they will not come and never ran before: a minority."`
	Listen           string       `group:"Node" env:"ROLLCALL_LISTEN" default:":7400" help:"Address of the cluster port."`
	Advertise        string       `group:"Node" env:"ROLLCALL_ADVERTISE" placeholder:"HOST:PORT" help:"Where peers and clients reach the cluster port; this node's address in --peers by default."`
	AdvertiseClient  string       `group:"Node" env:"ROLLCALL_ADVERTISE_CLIENT" placeholder:"HOST:PORT" help:"Where clients outside the cluster's own DNS reach it; --advertise by default."`
	HTTPListen       string       `group:"Node" name:"http-listen" env:"ROLLCALL_HTTP_LISTEN" default:":3001" help:"Address of /status, /healthz, /readyz and /metrics."`
	RaftTiming       string       `group:"Node" env:"ROLLCALL_RAFT_TIMING" enum:"lan,wan" default:"lan" help:"How soon a silent leader is replaced: within half a second between nodes close to each other, or in two to three between far ones."`
	TLS              cli.TLSFlags `embed:"" group:"TLS" prefix:"tls-"`

	RelayerCount       int    `group:"Static fleet" env:"RELAYER_COUNT" default:"3" min:"0" max:"10" help:"Size of the static fleet, oz-relayer-0 and up; 0 for none."`
	RelayerURLTemplate string `group:"Static fleet" name:"relayer-url-template" env:"RELAYER_URL_TEMPLATE" default:"http://oz-relayer-{N}:3000" help:"URL of a relayer of the static fleet, {N} being its number."`

	Health               healthFlags      `embed:"" group:"Health checks" prefix:"health-check-"`
	MinLive              map[string]int   `group:"Health checks" env:"ROLLCALL_MIN_LIVE" mapsep:"," placeholder:"KIND=N" help:"Live services of a kind without which the fleet is reported as stalled."`
	MassFailureThreshold float64          `group:"Health checks" env:"ROLLCALL_MASS_FAILURE_THRESHOLD" default:"0" min:"0" max:"1" help:"Mass-failure guard: when more than this share of a kind fails at once, removals are held back; 0 for off."`
	MassFailureHold      time.Duration    `group:"Health checks" env:"ROLLCALL_MASS_FAILURE_HOLD" default:"1m" min:"1s" max:"1h" help:"Maximum time removals are held."`
	Redis                cli.RedisFlags   `embed:"" group:"Redis"`
	Log                  process.LogFlags `embed:"" group:"Log" prefix:"log-"`
}

// Check reports what is wrong with the settings together.
func (c *coordinatorCmd) Check(p *config.Problems) {
	c.CheckFlags(p, c.Advertise != "")
	c.checkBootstrap(p)
	cli.CheckListen(p, &c.Listen, ":7400")
	cli.CheckListen(p, &c.HTTPListen, ":3001")
	for _, address := range []*string{&c.Advertise, &c.AdvertiseClient} {
		if host, port, err := cli.SplitHostPort(*address); *address != "" && (err != nil || host == "" || port == 0) {
			p.Addf(address, "give one such as coordinator-1:7400", "%q is not host:port", *address)
		}
	}
	c.TLS.CheckFlags(p)
	if c.RelayerCount > 0 {
		c.checkTemplate(p)
	}
	c.Health.check(p)
	for kind, needed := range c.MinLive {
		if err := rollcallv1.CheckDNSLabel(kind); err != nil || needed < 0 {
			p.Addf(&c.MinLive, "give kinds and numbers such as relayer=1", "%s=%d is not a kind and a number", kind, needed)
		}
	}
	c.Redis.CheckFlags(p)
}

// checkBootstrap reports ids that are not other peers, and a majority of them.
func (c *coordinatorCmd) checkBootstrap(p *config.Problems) {
	absent := make(map[string]bool)
	for _, id := range c.BootstrapWithout {
		absent[id] = true
		if id == c.NodeID || !slices.ContainsFunc(c.PeerList(), func(peer coordinator.Peer) bool { return peer.ID == id }) {
			p.Addf(&c.BootstrapWithout, "give ids of --peers", "%q is not another one of the peers", id)
		}
	}
	if len(c.Peers) > 0 && len(absent) > (len(c.Peers)-1)/2 {
		p.Addf(&c.BootstrapWithout, "start more of them", "%d of %d peers are a majority, without which no leader can be elected", len(absent), len(c.Peers))
	}
}

func (c *coordinatorCmd) checkTemplate(p *config.Problems) {
	if c.RelayerCount > 1 && !strings.Contains(c.RelayerURLTemplate, "{N}") {
		p.Addf(&c.RelayerURLTemplate, "put {N} where the relayer's number goes", "is the same URL for all %d relayers", c.RelayerCount)
		return
	}
	for n := range c.RelayerCount {
		url := strings.ReplaceAll(c.RelayerURLTemplate, "{N}", strconv.Itoa(n))
		checkRef(p, &c.RelayerURLTemplate, rollcallv1.KindRelayer, &rollcallv1.WorkerRef{Url: url})
	}
}

// checkRef reports a reference that a service of the kind may not have.
func checkRef(p *config.Problems, field *string, kind string, ref *rollcallv1.WorkerRef) {
	s := &rollcallv1.Service{Id: "x", Kind: kind, WorkerRef: ref}
	for _, v := range s.Validate() {
		p.Addf(field, "", "%s", v.Description)
	}
}

// httpAddress is where others reach the HTTP port: at the host that the cluster port is advertised with, unless
// it listens at one of its own.
func (c *coordinatorCmd) httpAddress() string {
	host, port, _ := cli.SplitHostPort(c.HTTPListen)
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		own := c.Advertise
		for _, peer := range c.PeerList() {
			if peer.ID == c.NodeID {
				own = cmp.Or(own, peer.Address)
			}
		}
		host, _, _ = cli.SplitHostPort(own)
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// config returns the node's configuration, without the parts that Run opens.
func (c *coordinatorCmd) config() coordinator.Config {
	timing := coordinator.LAN
	if c.RaftTiming == "wan" {
		timing = coordinator.WAN
	}
	return coordinator.Config{
		ID: c.NodeID, Listen: c.Listen, Advertise: c.Advertise, AdvertiseClient: c.AdvertiseClient,
		HTTPAddress: c.httpAddress(), Peers: c.PeerList(), BootstrapWithout: c.BootstrapWithout, DataDir: c.DataDir, Timing: timing,
		RelayerCount: c.RelayerCount, RelayerURLTemplate: c.RelayerURLTemplate,
		Version: process.Version(),
	}
}

// Run serves until ctx ends.
func (c *coordinatorCmd) Run(ctx context.Context, con *cli.Console) error {
	return process.Role{Name: "coordinator", Log: c.Log, Stderr: con.Stderr, Attrs: []any{"node", c.NodeID}}.Run(ctx, c.start)
}

// start opens a coordinator's parts and starts its stages.
func (c *coordinatorCmd) start(p *process.Process) error {
	cfg := c.config()
	web, err := status.Open(p.Context(), status.Config{
		Listen: c.HTTPListen, Node: c.NodeID, Version: cfg.Version, Interval: c.Health.interval(), Metrics: p.Metrics(), Starting: p.Starting,
		Logger: p.Log,
	})
	if err != nil {
		return err
	}
	p.Serve(web)
	p.Stage("settings")
	if err := raftMetrics(p.Registry); err != nil {
		return err
	}
	client, err := redisclient.New(c.Redis.Options())
	if err != nil {
		return err
	}
	var failed atomic.Bool
	p.OnStop("Redis", 0, func() error {
		if failed.Load() { // the leader's work continues to the end of the process, and would fill the log with complaints
			return nil
		}
		return client.Close()
	})
	lead := newLead(c, client, p.Registry, p.Log)
	cfg.Lead, cfg.Status, cfg.Logger, cfg.Registerer = lead.run, lead.status, p.Log, p.Registry
	if cfg.TLS, err = c.TLS.Load(clusterport.TLSConfig{Logger: p.Log}); err != nil {
		return err
	}
	p.Stage("disk and cluster port")
	node, err := coordinator.Open(p.Context(), cfg)
	if err != nil {
		return err
	}
	p.OnStop("node", nodeLimit, node.Close)
	web.Start(status.Cluster{Status: node.Status, Led: node.HasLeader, Directory: node.Directory(), Ready: node.Ready})
	// HTTP stays up until the node has handed over and stopped, so that its end can be observed.
	p.StopHTTPHere()
	p.Started("cluster_port", node.Addr().String(), "redis", c.Redis.Options(), "relayer_count", c.RelayerCount, "tls", cfg.TLS != nil)
	p.Go("cluster", nodeLimit, func(ctx context.Context) error {
		err := node.Run(ctx)
		failed.Store(err != nil)
		return err
	})
	return nil
}

// nodeLimit is above the limits that the node has for the steps of its end.
const nodeLimit = 5 * time.Minute

// raftMetrics publishes Raft's own metrics, as rollcall_raft_….
func raftMetrics(reg prometheus.Registerer) error {
	sink, err := metricsprom.NewPrometheusSinkFrom(metricsprom.PrometheusOpts{Registerer: reg, Expiration: 0})
	if err != nil {
		return fmt.Errorf("raft metrics: %w", err)
	}
	cfg := metrics.DefaultConfig("rollcall")
	cfg.EnableHostname, cfg.EnableRuntimeMetrics = false, false
	_, err = metrics.NewGlobal(cfg, sink)
	return err
}

// leaderWork is the leader's work: a director for each epoch.
type leaderWork struct {
	cfg     director.Config // what stays the same
	log     *slog.Logger
	current atomic.Pointer[director.Director]
}

func newLead(c *coordinatorCmd, client redis.UniversalClient, reg prometheus.Registerer, log *slog.Logger) *leaderWork {
	cfg := c.directorConfig()
	cfg.Health.Logger, cfg.Health.Metrics = log, health.NewMetrics(reg)
	cfg.Mirror.Client, cfg.Mirror.Logger, cfg.Mirror.Metrics = client, log, mirror.NewMetrics(reg)
	cfg.Logger, cfg.Metrics = log, director.NewMetrics(reg)
	return &leaderWork{cfg: cfg, log: log}
}

func (c *coordinatorCmd) directorConfig() director.Config {
	return director.Config{
		Node:                 c.NodeID,
		Health:               c.Health.config(),
		Mirror:               mirror.Config{Prefix: c.Redis.KeyPrefix},
		MinLive:              c.MinLive,
		MassFailureThreshold: c.MassFailureThreshold, MassFailureHold: c.MassFailureHold,
	}
}

// run directs one epoch.
func (l *leaderWork) run(ctx context.Context, leadership coordinator.Leadership) (higher uint64, err error) {
	cfg := l.cfg
	cfg.Cluster, cfg.Node, cfg.Epoch = leadership.Cluster, leadership.Node, leadership.Epoch
	cfg.Directory, cfg.Confirm, cfg.Lease, cfg.Ended = leadership.Directory, leadership.Confirm, leadership.Lease, leadership.Ended
	d, err := director.New(cfg)
	if err != nil {
		return 0, err
	}
	l.current.Store(d)
	defer l.current.CompareAndSwap(d, nil)
	return d.Run(ctx)
}

// status returns the report of the epoch's director; nil if there is none.
func (l *leaderWork) status(epoch uint64) *rollcallv1.GetStatusResponse {
	if d := l.current.Load(); d != nil && d.Epoch() == epoch {
		return d.Status()
	}
	return nil
}
