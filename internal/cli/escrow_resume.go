package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/rollcall-dev/rollcall/internal/escrow/admin"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
)

type escrowResumeCmd struct {
	AcceptFork bool `help:"The chain has left its final block for good: retract the events of the abandoned blocks, and read the new branch."`
	Yes        bool `help:"Do not ask for a confirmation of --accept-fork."`
	OutputFlags
	escrowChain
}

func (escrowResumeCmd) Help() string {
	return `A chain is halted when all nodes contradict a block that was final. Nothing is stored or published then. If the nodes have the final block
again, this ends the halt. Otherwise a node, or the chain, has gone wrong: find out before you accept it.

With --accept-fork the events of the abandoned blocks are retracted, the newest first, and the cursor goes back to the newest block that the chain
still has: the cursor before the fork, or a block with events. Messages of the abandoned blocks that wait are published before their retractions,
so that no escrow's sequence has a gap. If the command is interrupted, repeat it; the chain stays halted until all is retracted.`
}

func (c *escrowResumeCmd) Check(p *config.Problems) {
	c.check(p)
	if c.Yes && !c.AcceptFork {
		p.Addf(&c.Yes, "give --accept-fork, or leave it away", "confirms nothing")
	}
}

// escrowResumed is the result of a resume, for scripts.
type escrowResumed struct {
	*admin.Fork
	Resumed bool `json:"resumed"`
}

func (c *escrowResumeCmd) Run(ctx context.Context, con *Console) error {
	a, nodes, end, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer end()
	f, err := a.Fork(ctx, nodes)
	if err != nil {
		return resumeError(err)
	}
	if c.AcceptFork && !f.Same() {
		if err := confirm(ctx, con, c.OutputFlags, c.Yes, func(w io.Writer) { forkTable(w, f) }, "Retract them, and go on with the chain as it is?"); err != nil {
			return err
		}
	}
	retracted := 0
	if err := a.Resume(ctx, f, nodes, c.AcceptFork, func(n int) {
		if retracted = n; n < f.Abandoned {
			fmt.Fprintf(con.Stderr, "%d of %s retracted\n", n, plural(f.Abandoned, "event"))
		}
	}); err != nil {
		partly := ""
		if retracted > 0 {
			partly = plural(retracted, "event") + " retracted, and the chain is halted still"
		}
		return escrowOutcome(resumeError(err), partly)
	}
	return c.Print(con.Stdout, escrowResumed{f, true}, func(w io.Writer) {
		if f.Same() {
			fmt.Fprintf(w, "resumed: the chain has block %d %s again\n", f.Final.Number, f.Final.Hash)
			return
		}
		fmt.Fprintf(w, "resumed: %s retracted, and the chain is read from %s on\n", plural(f.Abandoned, "event"), ancestorOf(f))
	})
}

func forkTable(w io.Writer, f *admin.Fork) {
	line := fields(w, 10)
	line("halted", f.Reason)
	line("was final", escrowBlock(&f.Final))
	line("is now", escrowBlock(&f.Has))
	line("goes back", "to "+ancestorOf(f))
	line("retracts", plural(f.Abandoned, "event"))
}

// ancestorOf returns where the chain is read from after a fork.
func ancestorOf(f *admin.Fork) string {
	if f.Ancestor == nil {
		return "the start block"
	}
	return fmt.Sprintf("block %d", f.Ancestor.Number)
}

func resumeError(err error) error {
	switch {
	case errors.Is(err, admin.ErrNotHalted):
		return WithFix(err, "\"rollcall escrow status\" shows its state.")
	case errors.Is(err, admin.ErrFork):
		return WithFix(err, "Compare the nodes with others. If the chain has left that block for good, give --accept-fork.")
	case errors.Is(err, store.ErrNoTarget):
		return WithFix(err, "Start an instance: its start stores them.")
	case errors.Is(err, store.ErrChanged):
		return WithFix(err, "Look at it with \"rollcall escrow status\", and repeat the command.")
	}
	return chainError(err)
}
