// Command rollcall is every role of Rollcall and its operator's tool, a subcommand each.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	// The container image has no certificates of its own; a system's, where there are any, come first.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/rollcall-dev/rollcall/internal/platform/config"
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
	Dev         devCmd         `cmd:"" help:"Run a whole cluster on this machine, to try things out."`

	Status   statusCmd   `cmd:"" help:"Show who leads, and what the health checks found."`
	Services servicesCmd `cmd:"" help:"Read and change the service directory."`
	Cluster  clusterCmd  `cmd:"" help:"Administer the coordinators."`
	Mirror   mirrorCmd   `cmd:"" help:"Look at what Redis shows to readers, or take it over."`

	Tx      txCmd      `cmd:"" help:"Look at a pool's transactions and webhooks; cancel, bump, deliver again."`
	Keys    keysCmd    `cmd:"" help:"Look at a pool's keys; pause, drain and mend them."`
	Migrate migrateCmd `cmd:"" changes:"" help:"Bring the schema of the relayers' database up to date."`

	TLS        tlsCmd        `cmd:"" name:"tls" help:"Make certificates."`
	Completion completionCmd `cmd:"" help:"Print the code that makes a shell complete rollcall's commands."`
	Version    versionCmd    `cmd:"" help:"Print the version."`

	DevSecrets  devSecretsCmd  `cmd:"" hidden:"" help:"Make keys for development in a folder, unless they are there, and print their addresses."`
	DevChain    devChainCmd    `cmd:"" hidden:"" help:"Run an EVM chain for development, which begins again at each start."`
	Healthcheck healthcheckCmd `cmd:"" hidden:"" help:"Ask one URL whether it is well, for a container's health check."`
}

// console is where a command talks to people and scripts.
type console struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

// Exit codes beside 0.
const (
	exitNotDone = 1 // it failed, and nothing was changed that the message does not say
	exitUsage   = 2 // the command line or the settings are wrong
	exitUnknown = 3 // a write may be done or not
)

// run is the program: main calls it, and so do tests.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	parser, err := config.New(new(commands), config.Options{
		Name: "rollcall", Description: description, Stdout: stdout, Stderr: stderr,
	})
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitNotDone
	}
	if completing() {
		return completeLine(parser.Kong)
	}
	if len(args) == 1 && args[0] == "--version" {
		args = []string{"version"} // not a flag, which every command would have
	}
	kctx, err := parser.Parse(args)
	switch {
	case errors.Is(err, config.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, err)
		return exitUsage
	}
	kctx.BindTo(ctx, (*context.Context)(nil))
	kctx.Bind(&console{stdin: os.Stdin, stdout: stdout, stderr: stderr})
	if err := kctx.Run(); err != nil {
		text, code := explain(kctx.Selected(), err)
		if text != "" {
			fmt.Fprintln(stderr, text)
		}
		return code
	}
	return 0
}
