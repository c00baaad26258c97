package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/rollcall-dev/rollcall/internal/dev/supervisor"
	"github.com/rollcall-dev/rollcall/internal/discovery/mirror"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
)

type devCmd struct {
	Run    devRunCmd    `cmd:"" default:"withargs" help:"Run the cluster until Ctrl-C (the default)."`
	Kill   devKillCmd   `cmd:"" changes:"" help:"Kill one of its processes, as a crash would."`
	Start  devStartCmd  `cmd:"" changes:"" help:"Start a killed one again."`
	APIKey devAPIKeyCmd `cmd:"" name:"api-key" help:"Print the API key of one of its relayers."`
}

// devData says which cluster is meant.
type devData struct {
	Data string `default:"build/dev" placeholder:"FOLDER" help:"The cluster's data folder."`
}

type devRunCmd struct {
	devData
	IntervalMS int    `name:"health-check-interval-ms" env:"HEALTH_CHECK_INTERVAL_MS" default:"2000" min:"1000" max:"60000" help:"Time between two checks of a relayer, ms."`
	RedisURL   string `name:"redis-url" env:"REDIS_URL" placeholder:"URL" secret:"" help:"Redis to use; one is embedded by default."`
	KeyPrefix  string `name:"redis-key-prefix" env:"REDIS_KEY_PREFIX" help:"Put before every key and channel."`
}

// Check reports what is wrong with the settings together.
func (c *devRunCmd) Check(p *config.Problems) {
	if c.RedisURL == "" {
		return
	}
	o := mirror.Options{URL: c.RedisURL}
	client, err := mirror.NewClient(o)
	if err != nil {
		p.Addf(&c.RedisURL, "", "%v", err)
		return
	}
	_ = client.Close() // it has not been used
	if err := o.CheckPrefix(c.KeyPrefix); err != nil {
		p.Addf(&c.KeyPrefix, "", "%v", err)
	}
}

func (c *devRunCmd) Run(ctx context.Context, con *console) error {
	return supervisor.Run(ctx, supervisor.Config{
		Data: c.Data, RedisURL: c.RedisURL, KeyPrefix: c.KeyPrefix,
		Interval: time.Duration(c.IntervalMS) * time.Millisecond,
		Command:  cmp.Or(os.Args[0], "rollcall"), Out: con.stdout,
	})
}

type devKillCmd struct {
	Member string `arg:"" predictor:"devmember" help:"leader, coordinator-1 to 3, oz-relayer-0 to 2, gateway, chain, or postgres."`
	devData
}

func (c *devKillCmd) Run(ctx context.Context, con *console) error {
	r, err := supervisor.Kill(ctx, c.Data, c.Member)
	if err != nil {
		return c.explain(err)
	}
	fmt.Fprintf(con.stdout, "%s is killed (it was process %d)\n", r.Member, r.PID)
	return nil
}

type devStartCmd struct {
	Member string `arg:"" predictor:"devmember" help:"coordinator-1 to 3, oz-relayer-0 to 2, gateway, chain (a new one, on which the relayers send nothing), or postgres."`
	devData
}

func (c *devStartCmd) Run(ctx context.Context, con *console) error {
	r, err := supervisor.Start(ctx, c.Data, c.Member)
	if err != nil {
		return c.explain(err)
	}
	fmt.Fprintf(con.stdout, "%s runs as process %d\n", r.Member, r.PID)
	return nil
}

type devAPIKeyCmd struct {
	Relayer string `arg:"" predictor:"devrelayer" help:"oz-relayer-0 to 2."`
	devData
}

func (c *devAPIKeyCmd) Run(con *console) error {
	info := supervisor.Running(c.Data)
	if info == nil {
		return c.explain(supervisor.Absent(c.Data))
	}
	key, err := info.APIKey(c.Relayer)
	if err == nil {
		fmt.Fprintln(con.stdout, key)
	}
	return err
}

// devSecretsCmd makes what containers are given as files.
type devSecretsCmd struct {
	Folder   string `arg:"" help:"Where they are."`
	Relayers int    `default:"3" min:"1" max:"100" help:"How many relayers have an API key."`
}

func (c *devSecretsCmd) Run(ctx context.Context, con *console) error {
	secrets, err := supervisor.OpenSecrets(ctx, c.Folder, c.Relayers)
	if err == nil {
		fmt.Fprintln(con.stdout, secrets.Funded())
	}
	return err
}

func (d devData) explain(err error) error {
	if errors.Is(err, supervisor.ErrNotRunning) {
		return withFix(fmt.Errorf("%s: %w", d.Data, err), "Start one with \"rollcall dev\", or name its folder with --data.")
	}
	if errors.Is(err, supervisor.ErrStarting) {
		return fmt.Errorf("%s: %w", d.Data, err)
	}
	return err
}
