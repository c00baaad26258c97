package main

import (
	"context"
	"fmt"
	"net"

	"cloud.google.com/go/pubsub/v2/pstest"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/process"
)

// pubsubCmd runs Google's own fake of Pub/Sub until it is told to stop.
type pubsubCmd struct {
	Listen string           `default:"127.0.0.1:8085" help:"Address of its gRPC service, as PUBSUB_EMULATOR_HOST names it to clients; every process that reaches it may publish."`
	Log    process.LogFlags `embed:"" prefix:"log-"`
}

// Check reports what is wrong with the settings together.
func (c *pubsubCmd) Check(p *config.Problems) { cli.CheckListen(p, &c.Listen, "127.0.0.1:8085") }

// Run runs the fake until ctx ends.
func (c *pubsubCmd) Run(ctx context.Context, con *cli.Console) error {
	return process.Role{Name: "dev pubsub", Log: c.Log, Stderr: con.Stderr}.Run(ctx, c.start)
}

// start opens the fake. It keeps all messages in memory, and begins without any at each start.
func (c *pubsubCmd) start(p *process.Process) error {
	l, err := net.Listen("tcp", c.Listen) // the fake panics if the address is taken
	if err != nil {
		return fmt.Errorf("pub/sub: %w", err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	server := pstest.NewServerWithAddress(address)
	p.OnStop("server", 0, server.Close)
	p.Started("listen", address)
	return nil
}
