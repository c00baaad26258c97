package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rollcall-dev/rollcall/internal/discovery/admin"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

// MirrorCmd has the commands for what Redis shows.
type MirrorCmd struct {
	Show     mirrorShowCmd     `cmd:"" help:"Show the mirror's owner, age and active services."`
	TakeOver mirrorTakeOverCmd `cmd:"" changes:"" help:"Give a Redis that another cluster has written to this one."`
}

// mirrorMeta is relayer:meta and the active sets, for scripts. updatedAt is null when nothing was ever written.
type mirrorMeta struct {
	Cluster   string              `json:"cluster"`
	Epoch     uint64              `json:"epoch"`
	Seq       uint64              `json:"seq"`
	Leader    string              `json:"leader"`
	UpdatedAt *string             `json:"updatedAt"`
	AgeMS     int64               `json:"ageMs"`
	Active    map[string][]string `json:"active"`
}

type mirrorShowCmd struct {
	OutputFlags
	Redis   RedisFlags    `embed:""`
	Timeout time.Duration `env:"ROLLCALL_TIMEOUT" default:"10s" min:"100ms" max:"10m" help:"How long to wait for an answer."`
}

func (c *mirrorShowCmd) Check(p *config.Problems) { c.Redis.CheckFlags(p) }

func (c *mirrorShowCmd) Run(ctx context.Context, con *Console) error {
	c.Redis.orDev()
	client, err := c.Redis.client(c.Timeout)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	view, err := admin.ReadMirror(ctx, client, c.Redis.KeyPrefix)
	if err != nil {
		return redisError(err, &c.Redis)
	}
	m := mirrorMeta{
		Cluster: view.Meta.Cluster, Epoch: view.Meta.Token.Epoch, Seq: view.Meta.Token.Seq, Leader: view.Meta.Leader,
		Active: view.Active,
	}
	if at := view.Meta.UpdatedAt; !at.IsZero() {
		m.UpdatedAt = new(timefmt.Format(at))
		m.AgeMS = max(0, view.Now.Sub(at).Milliseconds())
	}
	return c.Print(con.Stdout, m, func(w io.Writer) {
		if m.UpdatedAt == nil {
			fmt.Fprintf(w, "%s: no coordinator has written here\n", c.Redis.Options())
			return
		}
		fmt.Fprintf(w, "cluster  %s\nleader   %s, epoch %d, seq %d\nupdated  %s, %v ago\n",
			m.Cluster, m.Leader, m.Epoch, m.Seq, *m.UpdatedAt, time.Duration(m.AgeMS)*time.Millisecond)
		for _, kind := range slices.Sorted(maps.Keys(m.Active)) {
			fmt.Fprintf(w, "active   %s: %s\n", kind, strings.Map(printable, strings.Join(m.Active[kind], ", ")))
		}
	})
}

// orDev fills in the Redis of the cluster that "rollcall-dev" runs here, where none is named. That cluster's
// coordinators are found in the same way, and its id must not get into another cluster's Redis.
func (r *RedisFlags) orDev() {
	if r.URL != "" || r.Host != "" || r.Port != 0 || r.Username != "" || r.Password != "" {
		return
	}
	if running := devinfo.Running(devinfo.DefaultData); running != nil {
		r.URL, r.KeyPrefix = running.RedisURL, cmp.Or(r.KeyPrefix, running.KeyPrefix)
	}
}

// client returns a client for a command with a time limit. Its connection may take all of that, because an operator may be far
// away from Redis, and a handshake that was cut short would hide what is wrong with a certificate.
func (r *RedisFlags) client(limit time.Duration) (redis.UniversalClient, error) {
	o := r.Options()
	o.DialTimeout = limit
	return redisclient.New(o)
}

func redisError(err error, r *RedisFlags) error {
	return WithFix(fmt.Errorf("redis at %s: %w", r.Options(), err), "Check REDIS_URL, or REDIS_HOST, REDIS_PORT and REDIS_PASSWORD.")
}

type mirrorTakeOverCmd struct {
	Cluster string     `placeholder:"ID" help:"The cluster's id; that of the cluster behind --coordinators by default."`
	Force   bool       `help:"Also when it is that cluster's already: forget its epoch, for one that is out of reach."`
	Redis   RedisFlags `embed:""`
	RemoteFlags
}

func (c *mirrorTakeOverCmd) Check(p *config.Problems) {
	c.check(p)
	c.Redis.CheckFlags(p)
}

func (c *mirrorTakeOverCmd) Run(ctx context.Context, con *Console) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	cluster := c.Cluster
	if cluster == "" {
		a, err := c.admin()
		if err != nil {
			return err
		}
		defer a.Close()
		l, err := a.Leader(ctx)
		if err != nil {
			return err
		}
		cluster = l.Cluster
	}
	if len(c.Coordinators) == 0 {
		c.Redis.orDev()
	}
	client, err := c.Redis.client(c.Timeout)
	if err != nil {
		return err
	}
	defer client.Close()
	before, changed, err := admin.TakeOver(ctx, client, c.Redis.KeyPrefix, cluster, c.Force)
	switch {
	case err != nil:
		return redisError(err, &c.Redis)
	case !changed:
		fmt.Fprintf(con.Stdout, "it belongs to cluster %s already\n", cluster)
	case before.Cluster == cluster:
		fmt.Fprintf(con.Stdout, "it belongs to cluster %s, and its epoch %d is forgotten: the leader claims it again\n", cluster, before.Token.Epoch)
	default:
		was := "no cluster"
		if before.Cluster != "" {
			was = "cluster " + before.Cluster
		}
		fmt.Fprintf(con.Stdout, "it belonged to %s and now does to cluster %s, whose leader writes what its checks find\n", was, cluster)
	}
	return nil
}
