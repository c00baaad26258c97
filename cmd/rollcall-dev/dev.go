package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/dev/supervisor"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
)

// dataFlags name the cluster.
type dataFlags struct {
	Data string `default:"build/dev" placeholder:"FOLDER" help:"The cluster's data folder."`
}

type runCmd struct {
	dataFlags
	IntervalMS int    `name:"health-check-interval-ms" env:"HEALTH_CHECK_INTERVAL_MS" default:"2000" min:"1000" max:"60000" help:"Time between two checks of a relayer, ms."`
	RedisURL   string `name:"redis-url" env:"REDIS_URL" placeholder:"URL" secret:"" help:"Redis to use; by default a redis-server of the cluster."`
	KeyPrefix  string `name:"redis-key-prefix" env:"REDIS_KEY_PREFIX" help:"Put before every key and channel."`
	Rollcall   string `placeholder:"FILE" help:"The program of the roles; by default rollcall beside this one."`

	NoDemo bool `name:"no-demo" help:"Create no escrow; by default one is created and settled each 10 s."`

	WebhookURLs []string `name:"webhook-urls" placeholder:"URL" help:"Base URLs that the relayers send webhooks to, such as those of proxies; by default the APIs'."`
}

// Check reports what is wrong with the settings together.
func (c *runCmd) Check(p *config.Problems) {
	if c.RedisURL == "" {
		return
	}
	o := redisclient.Options{URL: c.RedisURL}
	client, err := redisclient.New(o)
	if err != nil {
		p.Addf(&c.RedisURL, "", "%v", err)
		return
	}
	_ = client.Close() // it has not been used
	if err := o.CheckPrefix(c.KeyPrefix); err != nil {
		p.Addf(&c.KeyPrefix, "", "%v", err)
	}
}

func (c *runCmd) Run(ctx context.Context, con *cli.Console) error {
	return supervisor.Run(ctx, supervisor.Config{
		Data: c.Data, RedisURL: c.RedisURL, KeyPrefix: c.KeyPrefix,
		Interval: time.Duration(c.IntervalMS) * time.Millisecond, WebhookURLs: c.WebhookURLs,
		NoDemo: c.NoDemo, Rollcall: c.Rollcall, Command: cmp.Or(os.Args[0], "rollcall-dev"), Out: con.Stdout,
	})
}

type killCmd struct {
	Member string `arg:"" predictor:"devmember" help:"leader, coordinator-1 to 3, oz-relayer-0 to 2, api-1 or 2, consumer-1 or 2, escrow-1 or 2, gateway, chain, pubsub, postgres, or redis."`
	dataFlags
}

func (c *killCmd) Run(ctx context.Context, con *cli.Console) error {
	r, err := supervisor.Kill(ctx, c.Data, c.Member)
	if err != nil {
		return c.explain(err)
	}
	fmt.Fprintf(con.Stdout, "%s is killed (it was process %d)\n", r.Member, r.PID)
	return nil
}

type startCmd struct {
	Member string `arg:"" predictor:"devmember" help:"coordinator-1 to 3, oz-relayer-0 to 2, api-1 or 2, consumer-1 or 2, escrow-1 or 2, gateway, chain (a new one, on which the relayers send nothing), pubsub (empty), postgres, or redis (empty)."`
	dataFlags
}

func (c *startCmd) Run(ctx context.Context, con *cli.Console) error {
	r, err := supervisor.Start(ctx, c.Data, c.Member)
	if err != nil {
		return c.explain(err)
	}
	fmt.Fprintf(con.Stdout, "%s runs as process %d\n", r.Member, r.PID)
	return nil
}

type apiKeyCmd struct {
	Relayer string `arg:"" predictor:"devrelayer" help:"oz-relayer-0 to 2, or api-1 or 2."`
	dataFlags
}

func (c *apiKeyCmd) Run(con *cli.Console) error {
	info := devinfo.Running(c.Data)
	if info == nil {
		return c.explain(supervisor.Absent(c.Data))
	}
	key, err := info.APIKey(c.Relayer)
	if err == nil {
		fmt.Fprintln(con.Stdout, key)
	}
	return err
}

// secretsCmd makes the files of keys that containers get.
type secretsCmd struct {
	Folder   string   `arg:"" help:"Where they are."`
	Relayers int      `default:"3" min:"1" max:"100" help:"How many relayers have an API key."`
	APIs     []string `name:"api-urls" placeholder:"URL" help:"APIs that the relayers send webhooks to."`
}

func (c *secretsCmd) Run(ctx context.Context, con *cli.Console) error {
	secrets, err := supervisor.OpenSecrets(ctx, c.Folder, c.Relayers, c.APIs...)
	if err == nil {
		fmt.Fprintln(con.Stdout, secrets.Funded())
	}
	return err
}

func (d dataFlags) explain(err error) error {
	if errors.Is(err, supervisor.ErrNotRunning) {
		return cli.WithFix(fmt.Errorf("%s: %w", d.Data, err), "Start one with \"rollcall-dev\", or name its folder with --data.")
	}
	if errors.Is(err, supervisor.ErrNoAnswer) {
		return cli.WithFix(&gateway.UnknownOutcomeError{Cause: err.Error(), Err: err}, "Look at what \"rollcall-dev\" has printed since, and repeat it if need be.")
	}
	if errors.Is(err, supervisor.ErrStarting) {
		return fmt.Errorf("%s: %w", d.Data, err)
	}
	return err
}
