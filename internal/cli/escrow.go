package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/escrow/admin"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/devinfo"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/platform/timefmt"
)

// EscrowCommands are the operator's commands for the escrow monitor.
type EscrowCommands struct {
	Status     escrowStatusCmd     `cmd:"" help:"Show how far the chain is read, and what waits to be published."`
	Partitions escrowPartitionsCmd `cmd:"" help:"Count escrows and unpublished messages by partition."`
	Events     escrowEventsCmd     `cmd:"" help:"List stored events or parked logs; or follow what is published."`
	Verify     escrowVerifyCmd     `cmd:"" help:"Read blocks again from all nodes, and compare them with the messages."`
	Replay     escrowReplayCmd     `cmd:"" changes:"" help:"Send the messages of blocks again, marked as replays."`
	Backfill   escrowBackfillCmd   `cmd:"" changes:"" help:"Add an earlier start block, factories or events, and what they have missed."`
	Resume     escrowResumeCmd     `cmd:"" changes:"" help:"End a halt, after the nodes contradicted a final block."`
}

// escrowFlags are how a command reaches the monitor's store. No instance has to run for it.
type escrowFlags struct {
	databaseFlags
	ChainID uint64 `name:"chain-id" env:"CHAIN_ID" placeholder:"ID" help:"The chain; by default the only one that the database has."`
}

func (f *escrowFlags) check(p *config.Problems) *devinfo.Info { return f.CheckFlags(p) }

// admin opens the chain; end releases it.
func (f *escrowFlags) admin(ctx context.Context) (_ *admin.Admin, end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	db, err := f.Open(ctx)
	if err != nil {
		return nil, nil, err
	}
	a, err := admin.Open(ctx, db, f.ChainID)
	if err == nil {
		return a, db.Close, nil
	}
	db.Close()
	return nil, nil, escrowError(err)
}

// escrowError adds the remedy to an error of the monitor's store.
func escrowError(err error) error {
	if unknown, ok := errors.AsType[*admin.UnknownChainError](err); ok {
		if len(unknown.Known) == 0 {
			return WithFix(err, "Check DATABASE_URL or DATABASE_URL_FILE, or start an instance with \"rollcall escrow\".")
		}
		return WithFix(err, "Give --chain-id (CHAIN_ID).")
	}
	if errors.Is(err, store.ErrHalted) {
		return WithFix(err, "\"rollcall escrow resume\" goes on.")
	}
	return schemaError(err)
}

// escrowOutcome is [uncertain] for a change in transactions of the monitor's store: an error of one means that it did nothing, unless the
// answer to its commit was lost. partly describes what former transactions did; "" if there were none.
func escrowOutcome(err error, partly string) error {
	if !errors.Is(err, postgres.ErrUnknown) && partly == "" {
		return err
	}
	if partly != "" {
		partly += "; then: "
	}
	return WithFix(&gateway.UnknownOutcomeError{Cause: partly + err.Error(), Err: err}, "Look before you repeat it: \"rollcall escrow status\".")
}

// escrowNodes are the chain's nodes.
type escrowNodes struct {
	RPCURLs []string `name:"rpc-url" env:"RPC_URL" placeholder:"URL" secret:"" help:"Nodes of the chain; by default that of \"rollcall-dev\", where its database is used."`
	RPCFile string   `name:"rpc-url-file" env:"RPC_URL_FILE" placeholder:"FILE" help:"File that holds them, between commas."`
	MaxRPS  []int    `name:"rpc-max-rps" env:"RPC_MAX_RPS" placeholder:"N" help:"Calls that a node is sent in a second, each item of a batch counted: a number for each URL, in their order, or one for all; 0, the default, for any."`
}

func (n *escrowNodes) check(p *config.Problems, running *devinfo.Info) {
	ReadSecrets(p, &n.RPCURLs, &n.RPCFile)
	if len(n.RPCURLs) == 0 && running != nil && running.Chain.RPCURL != "" {
		n.RPCURLs = []string{running.Chain.RPCURL}
	}
	if len(n.RPCURLs) == 0 || !CheckMaxRPS(p, &n.MaxRPS, len(n.RPCURLs)) {
		return
	}
	if client, err := n.client(1); err != nil {
		p.Addf(&n.RPCURLs, "", "%v", err)
	} else {
		client.Close()
	}
}

// require reports that no node is given.
func (n *escrowNodes) require(p *config.Problems) {
	if len(n.RPCURLs) == 0 {
		p.Addf(&n.RPCURLs, "give a node's URL, such as http://127.0.0.1:8545; two or more confirm each other", "is missing")
	}
}

func (n *escrowNodes) distinct() evm.Config { return DistinctNodes(n.RPCURLs, n.MaxRPS) }

func (n *escrowNodes) client(chainID uint64) (*evm.Client, error) {
	cfg := n.distinct()
	cfg.ChainID = chainID
	return evm.Open(cfg)
}

// escrowAddress is an escrow's address as an option; nil without one.
type escrowAddress struct{ address *common.Address }

// UnmarshalText reads an address.
func (e *escrowAddress) UnmarshalText(text []byte) error {
	if !common.IsHexAddress(string(text)) {
		return errors.New("give 0x and 40 hexadecimal digits")
	}
	e.address = new(common.HexToAddress(string(text)))
	return nil
}

type escrowStatusCmd struct {
	OutputFlags
	escrowFlags
	escrowNodes
}

func (escrowStatusCmd) Help() string {
	return `The head, and how far the cursor is behind it, are shown where a node is given (--rpc-url). In "finalized" delivery the cursor stays at
the final block.`
}

func (c *escrowStatusCmd) Check(p *config.Problems) { c.escrowNodes.check(p, c.escrowFlags.check(p)) }

// escrowStatus is the state of a chain with what the nodes add, for scripts.
type escrowStatus struct {
	admin.Status
	Head      *uint64 `json:"head"`      // the newest block; null where no node was asked
	Lag       *uint64 `json:"lag"`       // blocks from the cursor to the head
	HeadError string  `json:"headError"` // why head is null though a node was asked
}

func (c *escrowStatusCmd) Run(ctx context.Context, con *Console) error {
	a, end, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	status, err := a.Status(ctx)
	if err != nil {
		return err
	}
	s := escrowStatus{Status: status}
	if len(c.RPCURLs) > 0 {
		head, err := c.head(ctx, a.ChainID)
		if err != nil {
			s.HeadError = err.Error()
		} else {
			s.Head = &head
			if s.Cursor != nil {
				s.Lag = new(head - min(head, s.Cursor.Number))
			}
		}
	}
	return c.Print(con.Stdout, &s, s.table)
}

// head returns the number of the newest block of the best node.
func (c *escrowStatusCmd) head(ctx context.Context, chainID uint64) (uint64, error) {
	client, err := c.client(chainID)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	v, err := client.Latest(ctx)
	if err != nil {
		return 0, err
	}
	return v.Header().Number, nil
}

func (s *escrowStatus) table(w io.Writer) {
	line := fields(w, 12)
	line("chain", strconv.FormatUint(s.ChainID, 10))
	line("halted", s.Halted)
	leader := s.Leader
	if leader == "" {
		leader = "none"
	}
	line("leader", fmt.Sprintf("%s, epoch %d", leader, s.Epoch))
	for _, f := range s.Factories {
		line("factory", lower(f))
	}
	line("start block", strconv.FormatUint(s.StartBlock, 10))
	line("cursor", escrowBlock(s.Cursor))
	if s.Cursor != nil && !s.MovedAt.IsZero() {
		line("moved", age(s.MovedAt.Time)+" ago")
	}
	line("final", escrowBlock(s.Final))
	if s.Head != nil {
		text := strconv.FormatUint(*s.Head, 10)
		if s.Lag != nil {
			text += fmt.Sprintf(", %s after the cursor", plural(int(*s.Lag), "block"))
		}
		line("head", text)
	}
	line("head error", s.HeadError)
	line("blocks", fmt.Sprintf("%d read, %s met again", s.Blocks, plural(int(s.Repeated), "event")))
	line("escrows", fmt.Sprintf("%d: %d active, %d released, %d refunded", s.Escrows, s.ByState[events.Active], s.ByState[events.Released], s.ByState[events.Refunded]))
	line("parked", strconv.FormatInt(s.Parked, 10))
	for _, m := range s.Messages {
		line("unpublished", fmt.Sprintf("%d waiting and %d dead to %s, the oldest for %s", m.Waiting, m.Dead, m.To, age(m.Oldest.Time)))
	}
	if len(s.Messages) == 0 {
		line("unpublished", "none")
	}
	for i := range s.Instances {
		line("instance", escrowInstance(&s.Instances[i]))
	}
	if len(s.Instances) == 0 {
		line("instance", "none")
	}
}

func escrowInstance(i *admin.Instance) string {
	text := fmt.Sprintf("%s, heartbeat %s ago", i.ID, age(time.Now().Add(-time.Duration(i.HeartbeatAge*float64(time.Second)))))
	if i.Leading {
		text += ", leads"
	}
	if i.Total > 0 {
		text += fmt.Sprintf(", partition %d of %d", i.Partition, i.Total)
	}
	return text
}

func escrowBlock(b *admin.Block) string {
	switch {
	case b == nil:
		return "none"
	case b.Time.IsZero():
		return fmt.Sprintf("%d %s", b.Number, b.Hash)
	}
	return fmt.Sprintf("%d %s, %s old", b.Number, b.Hash, age(b.Time.Time))
}

type escrowPartitionsCmd struct {
	Total int `env:"TOTAL_PARTITIONS" placeholder:"N" min:"0" max:"2520" help:"Count as N static instances share the escrows: by partition modulo N. By default each of the 2520 partitions that has escrows or messages."`
	OutputFlags
	escrowFlags
}

func (c *escrowPartitionsCmd) Check(p *config.Problems) { c.check(p) }

func (c *escrowPartitionsCmd) Run(ctx context.Context, con *Console) error {
	a, end, err := c.admin(ctx)
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	list, err := a.Partitions(ctx, c.Total)
	if err != nil {
		return err
	}
	return c.Print(con.Stdout, list, func(w io.Writer) {
		var rows [][]string
		for _, l := range list {
			rows = append(rows, []string{strconv.Itoa(l.Partition), strconv.FormatInt(l.Escrows, 10), strconv.FormatInt(l.Unpublished, 10), ageOf(l.Oldest)})
		}
		table(w, "PARTITION ESCROWS UNPUBLISHED OLDEST", rows)
		fmt.Fprintln(w, plural(len(rows), "partition"))
	})
}

// ageOf is age for a time that may be missing.
func ageOf(t timefmt.Timestamp) string {
	if t.IsZero() {
		return ""
	}
	return age(t.Time)
}

// blockTime is a block's time as tables show it.
func blockTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
