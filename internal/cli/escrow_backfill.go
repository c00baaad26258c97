package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/escrow/admin"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/escrow/watch"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

type escrowBackfillCmd struct {
	From    *uint64  `required:"" placeholder:"BLOCK" help:"The first block that is read again. If it is before the start block, it becomes that."`
	Factory []string `placeholder:"ADDRESS" help:"Factories to add."`
	DryRun  bool     `help:"Print what would be added; change nothing."`
	Yes     bool     `help:"Do not ask for a confirmation."`
	OutputFlags
	escrowChain
}

func (escrowBackfillCmd) Help() string {
	return `Factories, start block and set of events are stored at the first start. This adds what is new: an earlier start block, factories, or the events
that --events has and the chain does not. It reads the blocks again, confirms them as an instance does, and stores what was missing: messages with
the member "late": true, which follow those that their escrows have. Then it stores the settings.

Instances go on meanwhile. At the end it takes the watcher's lease for some seconds, and messages that are pending are retracted and read again.
From then on an instance reads the chain only if it was started with the new settings, which the command prints; one with the former ones ends
once it is elected to read. If the command is interrupted, the settings are the former ones, unless it reports that the outcome is
unknown, and you can repeat it.`
}

func (c *escrowBackfillCmd) Check(p *config.Problems) {
	c.check(p)
	for _, f := range c.Factory {
		if !common.IsHexAddress(f) {
			p.Addf(&c.Factory, "give 0x and 40 hexadecimal digits", "%q is not the address of a contract", f)
		}
	}
	if c.From != nil && *c.From >= 1<<63 {
		p.Addf(&c.From, "give one below 2^63", "is too large")
	}
}

// escrowBackfilled is the result of a backfill, for scripts.
type escrowBackfilled struct {
	*admin.Backfill
	Messages int  `json:"messages"`
	Done     bool `json:"done"`
}

func (c *escrowBackfillCmd) Run(ctx context.Context, con *Console) error {
	a, nodes, end, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer end()
	var factories []common.Address
	for _, f := range c.Factory {
		factories = append(factories, common.HexToAddress(f))
	}
	limited, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	plan, err := a.PlanBackfill(limited, nodes, *c.From, factories)
	if err != nil {
		return backfillError(err)
	}
	if c.DryRun {
		return c.Print(con.Stdout, escrowBackfilled{Backfill: plan}, func(w io.Writer) { backfillTable(w, plan) })
	}
	if err := confirm(ctx, con, c.OutputFlags, c.Yes, func(w io.Writer) { backfillTable(w, plan) }, "Read the blocks again?"); err != nil {
		return err
	}
	progress := progressOf(con.Stderr, "read", plan.From)
	messages, err := a.Backfill(ctx, plan, nodes, func(block uint64, _ int) { progress(block) })
	if err != nil {
		return escrowOutcome(backfillError(err), backfillPart(messages, err))
	}
	return c.Print(con.Stdout, escrowBackfilled{plan, messages, true}, func(w io.Writer) {
		fmt.Fprintf(w, "%s added. Start the instances with these settings now:\n", plural(messages, "late message"))
		settingsTable(w, plan, c.EventsFile)
	})
}

// backfillTable prints what a backfill adds.
func backfillTable(w io.Writer, b *admin.Backfill) {
	line := fields(w, 12)
	line("from block", fmt.Sprint(b.From))
	line("start block", fmt.Sprint(b.StartBlock))
	for _, f := range b.Factories {
		line("new factory", lower(f))
	}
	for _, e := range b.Events {
		line("new event", e)
	}
}

// settingsTable prints the settings that instances need after a backfill.
func settingsTable(w io.Writer, b *admin.Backfill, events string) {
	all := make([]string, len(b.AllFactories))
	for i, f := range b.AllFactories {
		all[i] = lower(f)
	}
	fmt.Fprintf(w, "FACTORY_ADDRESS=%s\nSTART_BLOCK=%d\n", strings.Join(all, ","), b.StartBlock)
	if events != "" {
		fmt.Fprintln(w, "ESCROW_EVENTS="+strings.Map(printable, events))
	}
}

// backfillPart describes what a backfill did before an error: it has added messages for certain. The commit whose answer was lost may be
// the last one, which stores the settings.
func backfillPart(messages int, err error) string {
	switch {
	case errors.Is(err, postgres.ErrUnknown):
		return plural(messages, "late message") + " added, and the settings may be the former or the new ones"
	case messages > 0:
		return plural(messages, "late message") + " added, and the settings are the former ones"
	}
	return ""
}

func backfillError(err error) error {
	switch {
	case errors.Is(err, admin.ErrNothingNew):
		return WithFix(err, "Give an earlier block with --from, new factories with --factory, or a larger set with --events (ESCROW_EVENTS).")
	case errors.Is(err, admin.ErrNoFinal):
		return WithFix(err, "Try again when \"rollcall escrow status\" shows one.")
	case errors.Is(err, admin.ErrRemoves):
		return WithFix(err, "Events can only be added: give the file that the instances have, with what is new.")
	case errors.Is(err, watch.ErrNoCode):
		return WithFix(err, "Correct --factory: its events could not be on this chain. A factory cannot be removed again.")
	case errors.Is(err, store.ErrNoTarget):
		return WithFix(err, "Start an instance: its start stores them.")
	case errors.Is(err, store.ErrChanged), errors.Is(err, store.ErrFenced):
		return WithFix(err, "Another operator, or an instance, was faster. Repeat the command: what is stored is not stored twice.")
	}
	return chainError(err)
}
