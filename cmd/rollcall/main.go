// Command rollcall has a subcommand for each role of Rollcall, and for each operation of an operator.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	// The container image has no certificates of its own; a system's, where there are any, come first.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/rollcall-dev/rollcall/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // from then on a second signal kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const description = "Rollcall keeps a fleet of transaction relayers discoverable, healthy and busy."

// commands is the command line, in the order of the help.
type commands struct {
	Coordinator coordinatorCmd `cmd:"" help:"Run a coordinator: one of three or five nodes that hold the directory and check the fleet."`
	Gateway     gatewayCmd     `cmd:"" help:"Run a gateway: keep what runs on this host registered."`
	Relayer     relayerCmd     `cmd:"" help:"Run a relayer: send transactions with a pool of keys, behind OpenZeppelin Relayer's HTTP API."`
	API         apiCmd         `cmd:"" name:"api" help:"Run an API: accept clients' transactions, and store and queue them."`
	Consumer    consumerCmd    `cmd:"" help:"Run a consumer: give queued transactions to the live relayers."`
	Escrow      escrowCmd      `cmd:"" help:"Run an escrow monitor: read the events of factories and their escrows, and publish them."`

	Status   cli.StatusCmd   `cmd:"" help:"Show who leads, and what the health checks found."`
	Services cli.ServicesCmd `cmd:"" help:"Read and change the service directory."`
	Cluster  cli.ClusterCmd  `cmd:"" help:"Administer the coordinators."`
	Mirror   cli.MirrorCmd   `cmd:"" help:"Look at what Redis shows to readers, or take it over."`

	Tx          cli.TxCmd          `cmd:"" help:"Look at transactions of a pool, and at those of the relay path; cancel, bump, resolve."`
	DeadLetters cli.DeadLettersCmd `cmd:"" help:"List what the queue and the webhooks gave up; have it tried again, or drop it."`
	Keys        cli.KeysCmd        `cmd:"" help:"Look at a pool's keys; pause, drain and repair them."`
	Migrate     cli.MigrateCmd     `cmd:"" changes:"" help:"Bring the schema of the database up to date: of the relayers, the relay path and the escrow monitor."`

	TLS        tlsCmd            `cmd:"" name:"tls" help:"Make certificates."`
	Completion cli.CompletionCmd `cmd:"" help:"Print the code that makes a shell complete rollcall's commands."`
	Version    cli.VersionCmd    `cmd:"" help:"Print the version."`

	Healthcheck healthcheckCmd `cmd:"" hidden:"" help:"Ask one URL whether it is well, for a container's health check."`
}

// run is the program: main calls it, and so do tests.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p := cli.Program{Name: "rollcall", Description: description, Commands: new(commands)}
	return p.Run(ctx, args, stdout, stderr)
}
