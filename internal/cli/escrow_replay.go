package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/rollcall-dev/rollcall/internal/escrow/admin"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
)

// escrowRange is a range of blocks that has to be given.
type escrowRange struct {
	From uint64 `required:"" placeholder:"BLOCK" help:"The first block."`
	To   uint64 `required:"" placeholder:"BLOCK" help:"The last block."`
}

func (r *escrowRange) check(p *config.Problems) {
	if r.To < max(r.From, 1) {
		p.Addf(&r.To, "give the first block with --from", "is before %d", max(r.From, 1))
	}
}

type escrowReplayCmd struct {
	escrowRange
	Escrow escrowAddress `placeholder:"ADDRESS" help:"The messages of this escrow only."`
	Target []string      `placeholder:"NAME" help:"Only for these targets, topic or webhook/NAME; by default all that the instances have."`
	DryRun bool          `help:"Print what would be enqueued; change nothing."`
	Yes    bool          `help:"Do not ask for a confirmation."`
	OutputFlags
	escrowFlags
}

func (escrowReplayCmd) Help() string {
	return `The latest message of each event of the blocks is enqueued again, in one transaction, after those that wait for its escrow. A replay has the
id, revision and sequence of the original, and the same bytes but for the member "replay": true. A consumer that has the revision ignores it.`
}

func (c *escrowReplayCmd) Check(p *config.Problems) {
	c.escrowRange.check(p)
	c.escrowFlags.check(p)
}

// escrowReplayed is the result of a replay, for scripts.
type escrowReplayed struct {
	admin.Replay
	Done bool `json:"done"`
}

func (c *escrowReplayCmd) Run(ctx context.Context, con *Console) error {
	a, end, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer end()
	filter := admin.Filter{Escrow: c.Escrow.address, From: c.From, To: c.To}
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	plan, err := a.PlanReplay(limited, filter, c.Target)
	if err != nil {
		return replayError(err)
	}
	describe := func(w io.Writer) {
		fmt.Fprintf(w, "blocks %d to %d: %s of %s, to %s\n", plan.From, plan.To, plural(plan.Messages, "message"), plural(plan.Escrows, "escrow"), strings.Join(plan.Targets, ", "))
	}
	if c.DryRun || plan.Messages == 0 {
		return c.Print(con.Stdout, escrowReplayed{Replay: plan}, describe)
	}
	if err := confirm(ctx, con, c.OutputFlags, c.Yes, describe, "Send them again?"); err != nil {
		return err
	}
	// A person may have taken long.
	limited, cancel = context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if plan.Messages, err = a.Replay(limited, filter, plan.Targets); err != nil {
		return escrowOutcome(replayError(err), "")
	}
	return c.Print(con.Stdout, escrowReplayed{plan, true}, func(w io.Writer) {
		fmt.Fprintf(w, "%s enqueued again for %s\n", plural(plan.Messages, "message"), plural(len(plan.Targets), "target"))
	})
}

func replayError(err error) error {
	unknown, is := errors.AsType[*admin.UnknownTargetError](err)
	switch {
	case is:
		return WithFix(err, "Give --target %s, or none for all. A target that is added is known once an instance has started with it.", unknown.Known[0])
	case errors.Is(err, store.ErrNoTarget):
		return WithFix(err, "Start an instance: its start stores them.")
	case errors.Is(err, store.ErrReplayTooLarge):
		return WithFix(err, "Give fewer blocks, one range after the other, or one escrow.")
	}
	return escrowError(err)
}
