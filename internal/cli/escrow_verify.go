package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/rollcall-dev/rollcall/internal/escrow/admin"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/watch"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
)

// escrowEvents is the set of events that the chain's settings have.
type escrowEvents struct {
	EventsFile string `name:"events" env:"ESCROW_EVENTS" placeholder:"FILE" help:"YAML file of the events, as the instances have it; by default the built-in ones."`

	set *events.Set
}

func (e *escrowEvents) check(p *config.Problems) {
	if e.EventsFile == "" {
		e.set = events.BuiltIn()
		return
	}
	var err error
	if e.set, err = events.Load(e.EventsFile); err != nil {
		p.Addf(&e.EventsFile, "", "%s", OneLine(err))
	}
}

// escrowChain is how a command reaches the monitor's store and the chain.
type escrowChain struct {
	escrowEvents
	escrowFlags
	escrowNodes
}

func (c *escrowChain) check(p *config.Problems) {
	c.escrowEvents.check(p)
	c.escrowNodes.check(p, c.escrowFlags.check(p))
	c.require(p)
}

// open opens the chain and its nodes; end releases both.
func (c *escrowChain) open(ctx context.Context) (_ *admin.Admin, _ admin.Nodes, end func(), err error) {
	a, closeStore, err := c.admin(ctx)
	if err != nil {
		return nil, admin.Nodes{}, nil, err
	}
	client, err := c.client(a.ChainID)
	if err != nil {
		closeStore()
		return nil, admin.Nodes{}, nil, err
	}
	end = func() { client.Close(); closeStore() }
	return a, admin.Nodes{Client: client, Events: c.set, Alone: len(c.distinct().Endpoints) == 1}, end, nil
}

// chainError adds the remedy to an error of an operation that reads the chain.
func chainError(err error) error {
	switch {
	case errors.Is(err, admin.ErrEvents):
		return WithFix(err, "Give the file that the instances have, with --events (ESCROW_EVENTS).")
	case errors.Is(err, watch.ErrUnconfirmed):
		return WithFix(err, "Two nodes have to agree, or one has to serve receipts. Give others with --rpc-url (RPC_URL), or try again.")
	}
	return escrowError(err)
}

type escrowVerifyCmd struct {
	escrowRange
	OutputFlags
	escrowChain
}

func (escrowVerifyCmd) Help() string {
	return `It reads the blocks again from all nodes, and compares what they confirm with the messages that were not retracted, whether they are
published, still wait, or were dropped as dead letters. Blocks must be final and read, from the start block on; at most a million at a time. MISSING are events that no message has,
and FALSE are messages of events that the chain does not have like that. A row of a node has its answers alone: one whose answers differ from
what the nodes confirm is wrong itself.

The exit code is 0 if the messages are the chain's events, 1 if they differ, 2 for wrong settings, and 3 if the blocks could not be compared.`
}

func (c *escrowVerifyCmd) Check(p *config.Problems) {
	c.escrowRange.check(p)
	c.escrowChain.check(p)
}

// progressEvery is how often a long operation prints how far it is.
const progressEvery = 5 * time.Second

// progressOf returns a function that prints the block up to which an operation is done, from time to time.
func progressOf(w io.Writer, done string, from uint64) func(uint64) {
	last := time.Now()
	return func(at uint64) {
		if time.Since(last) >= progressEvery && at >= from {
			last = time.Now()
			fmt.Fprintf(w, "%s up to block %d: %s\n", done, at, plural(int(at-from+1), "block"))
		}
	}
}

func (c *escrowVerifyCmd) Run(ctx context.Context, con *Console) error {
	v, err := c.verify(ctx, con)
	if err != nil {
		return withExit(chainError(err), ExitUnknown)
	}
	if err := c.Print(con.Stdout, v, func(w io.Writer) { verifiedTable(w, v) }); err != nil {
		return withExit(err, ExitUnknown)
	}
	if !v.Equal() {
		return WithFix(fmt.Errorf("the messages differ from the chain: %d missing, %d false", v.Missing, v.False),
			"See docs/escrow.md, \"When verify finds a difference\".")
	}
	return nil
}

func (c *escrowVerifyCmd) verify(ctx context.Context, con *Console) (*admin.Verified, error) {
	a, nodes, end, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	return a.Verify(ctx, nodes, c.From, c.To, progressOf(con.Stderr, "compared", c.From))
}

func verifiedTable(w io.Writer, v *admin.Verified) {
	var rows [][]string
	row := func(name string, n int, c admin.Comparison, problem string) {
		rows = append(rows, []string{name, strconv.Itoa(n), strconv.Itoa(c.Missing), strconv.Itoa(c.False), problem})
	}
	row("confirmed", v.Events, v.Comparison, "")
	for _, e := range v.Endpoints {
		row(e.Endpoint, e.Events, e.Comparison, e.Error)
	}
	table(w, "ANSWER EVENTS MISSING FALSE ERROR", rows)
	if len(v.Differences) > 0 {
		fmt.Fprintln(w)
		rows = nil
		for _, d := range v.Differences {
			rows = append(rows, []string{d.Kind, strconv.FormatUint(d.BlockNumber, 10), d.BlockHash.Hex(), lower(d.Escrow), d.Type, d.EventID})
		}
		table(w, "DIFFERENCE BLOCK HASH ESCROW TYPE EVENT", rows)
		if n := v.Missing + v.False; n > len(rows) {
			fmt.Fprintf(w, "the first %d of %d differences\n", len(rows), n)
		}
	}
	fmt.Fprintf(w, "blocks %d to %d: ", v.From, v.To)
	if v.Equal() {
		fmt.Fprintln(w, "the messages are the chain's events")
	} else {
		fmt.Fprintln(w, "the messages differ from the chain's events")
	}
}
