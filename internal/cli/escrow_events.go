package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/rollcall-dev/rollcall/internal/escrow/admin"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
)

type escrowEventsCmd struct {
	Follow bool          `short:"f" help:"Print the messages as a target accepts them, until it is interrupted."`
	Parked bool          `help:"List logs of watched contracts that did not decode, with the reason and the bytes."`
	Escrow escrowAddress `placeholder:"ADDRESS" help:"Those of this escrow only."`
	From   uint64        `placeholder:"BLOCK" help:"Those from this block on."`
	To     uint64        `placeholder:"BLOCK" help:"Those up to this block."`
	Limit  int           `default:"100" min:"1" max:"100000" help:"How many of the newest are listed, up to 100000. The list goes on backwards with --to."`
	OutputFlags
	escrowFlags
}

func (escrowEventsCmd) Help() string {
	return `The list has the latest message of each event, in the order of the chain, whether it is published or not.

With --follow each message is printed once for each target that accepts it, in the order of its escrow: those that wait now, and all later ones.
With -o json it is a line each. It does not show what was published before, nor a message that "rollcall dead-letters drop" deletes.`
}

func (c *escrowEventsCmd) Check(p *config.Problems) {
	c.check(p)
	switch {
	case c.Follow && c.Parked:
		p.Addf(&c.Follow, "give one of them", "contradicts %s", p.Where(&c.Parked))
	case c.Follow && (c.From > 0 || c.To > 0):
		p.Addf(&c.Follow, "leave the blocks away", "shows what is published from now on")
	case c.To > 0 && c.To < c.From:
		p.Addf(&c.To, "give the first block with --from", "is before %d", c.From)
	}
}

func (c *escrowEventsCmd) Run(ctx context.Context, con *Console) error {
	a, end, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if c.Follow {
		return c.follow(ctx, con, a)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	filter := admin.Filter{Escrow: c.Escrow.address, From: c.From, To: c.To, Limit: c.Limit}
	if c.Parked {
		return c.parked(ctx, con, a, filter)
	}
	found, err := a.Events(ctx, filter)
	if err != nil {
		return err
	}
	list := struct {
		Events []*events.Message `json:"events"`
	}{append([]*events.Message{}, found...)}
	return c.Print(con.Stdout, list, func(w io.Writer) {
		var rows [][]string
		for _, m := range list.Events {
			rows = append(rows, []string{
				strconv.FormatUint(m.BlockNumber, 10), blockTime(m.BlockTime), m.OrderingKey(), strconv.FormatInt(m.Sequence, 10), m.Type, string(m.Status),
				strconv.Itoa(m.Revision), m.TxHash.Hex(),
			})
		}
		table(w, "BLOCK TIME ESCROW SEQUENCE TYPE STATUS REVISION TRANSACTION", rows)
		c.count(w, len(rows), "event")
	})
}

// count prints how many rows there are.
func (c *escrowEventsCmd) count(w io.Writer, n int, one string) {
	if n == c.Limit {
		fmt.Fprint(w, "the newest ")
	}
	fmt.Fprintln(w, plural(n, one))
}

func (c *escrowEventsCmd) parked(ctx context.Context, con *Console, a *admin.Admin, filter admin.Filter) error {
	found, err := a.Parked(ctx, filter)
	if err != nil {
		return err
	}
	list := struct {
		Parked []admin.Parked `json:"parked"`
	}{append([]admin.Parked{}, found...)}
	return c.Print(con.Stdout, list, func(w io.Writer) {
		for i := range list.Parked {
			p := &list.Parked[i]
			line := fields(w, 11)
			line("event", p.EventID)
			line("block", fmt.Sprintf("%d %s", p.BlockNumber, p.BlockHash))
			line("contract", lower(p.Contract))
			if p.Escrow != nil {
				line("escrow", lower(*p.Escrow))
			}
			line("transaction", p.TxHash.Hex())
			line("log index", fmt.Sprint(p.LogIndex))
			line("reason", p.Reason)
			for _, topic := range p.Topics {
				line("topic", topic.Hex())
			}
			line("data", p.Data.String())
			line("parked", p.ParkedAt.String())
			fmt.Fprintln(w)
		}
		c.count(w, len(list.Parked), "parked log")
	})
}

func (c *escrowEventsCmd) follow(ctx context.Context, con *Console, a *admin.Admin) error {
	begin, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	f, err := a.Follow(begin, c.Escrow.address)
	if err != nil {
		return err
	}
	return f.Run(ctx, func(p admin.Published) error {
		if c.Output == "json" {
			return printJSONLine(con.Stdout, p)
		}
		m := p.Message
		mark := ""
		if m.Replay {
			mark = " replay"
		}
		fmt.Fprintf(con.Stdout, "%s  block %d  %s  %d  %s %s%s  to %s\n",
			p.PublishedAt, m.BlockNumber, m.OrderingKey(), m.Sequence, m.Type, m.Status, mark, p.To)
		return nil
	})
}
