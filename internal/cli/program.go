package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/rollcall-dev/rollcall/internal/platform/config"
)

// Console is where a command talks to people and scripts.
type Console struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Exit codes besides 0.
const (
	ExitNotDone = 1 // the command failed, and changed nothing except as its message states
	ExitUsage   = 2 // the command line or the settings are wrong
	ExitUnknown = 3 // a write may be done or not; or a comparison was not possible
)

// Program is the command line of a binary.
type Program struct {
	Name, Description string
	// Commands is a pointer to the struct of its commands. The struct has a command "version".
	Commands any
	// Words are the completions of arguments, by the name in their predictor tag.
	Words map[string][]string
}

// Run parses and runs one command, and returns the exit code.
func (p *Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	parser, err := config.New(p.Commands, config.Options{Name: p.Name, Description: p.Description, Stdout: stdout, Stderr: stderr})
	if err != nil {
		fmt.Fprintln(stderr, err)
		return ExitNotDone
	}
	if completing() {
		return completeLine(parser.Kong, p.Words)
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
		return ExitUsage
	}
	kctx.BindTo(ctx, (*context.Context)(nil))
	kctx.Bind(&Console{Stdin: os.Stdin, Stdout: stdout, Stderr: stderr}, p)
	if err := kctx.Run(); err != nil {
		text, code := explain(ctx, kctx.Selected(), err)
		if text != "" {
			fmt.Fprintln(stderr, text)
		}
		return code
	}
	return 0
}
