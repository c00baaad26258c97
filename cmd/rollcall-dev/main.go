// Command rollcall-dev runs a whole cluster on one machine for development: the roles as processes of rollcall, a chain,
// PostgreSQL and Redis. Production needs nothing of it.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/rollcall-dev/rollcall/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // from then on a second signal kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const description = "Rollcall's development cluster: coordinators, a gateway, relayers, APIs and consumers, the escrow monitor, a chain, Pub/Sub, PostgreSQL and Redis on this machine."

// commands is the command line, in the order of the help.
type commands struct {
	Run    runCmd    `cmd:"" default:"withargs" help:"Run the cluster until Ctrl-C (the default)."`
	Kill   killCmd   `cmd:"" changes:"" help:"Kill one of its processes, as a crash would."`
	Start  startCmd  `cmd:"" help:"Start a killed one again."`
	APIKey apiKeyCmd `cmd:"" name:"api-key" help:"Print the API key of one of its relayers or APIs."`

	Secrets secretsCmd `cmd:"" help:"Make keys for development in a folder, unless they are there, and print their addresses."`
	Chain   chainCmd   `cmd:"" help:"Run an EVM chain for development, which begins again at each start."`
	PubSub  pubsubCmd  `cmd:"" name:"pubsub" help:"Run Google's fake of Pub/Sub, which keeps messages in memory alone."`

	Completion cli.CompletionCmd `cmd:"" help:"Print the code that makes a shell complete rollcall-dev's commands."`
	Version    cli.VersionCmd    `cmd:"" help:"Print the version."`
}

// words are the names of the cluster's processes, for completion.
var words = map[string][]string{
	"devmember": {
		"leader", "coordinator-1", "coordinator-2", "coordinator-3", "oz-relayer-0", "oz-relayer-1", "oz-relayer-2", "gateway", "chain", "postgres", "redis",
		"api-1", "api-2", "consumer-1", "consumer-2", "escrow-1", "escrow-2", "pubsub",
	},
	"devrelayer": {"oz-relayer-0", "oz-relayer-1", "oz-relayer-2", "api-1", "api-2"},
}

// run is the program: main calls it, and so do tests.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p := cli.Program{Name: "rollcall-dev", Description: description, Commands: new(commands), Words: words}
	return p.Run(ctx, args, stdout, stderr)
}
