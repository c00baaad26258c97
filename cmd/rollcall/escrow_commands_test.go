package main

import (
	"context"
	"encoding/json"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/dev/contract"
	"github.com/rollcall-dev/rollcall/internal/dev/escrowchain"
	"github.com/rollcall-dev/rollcall/internal/escrow/admin"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/escrow/watch"
	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// escrowFinality is how many blocks below the newest one the final block is.
const escrowFinality = 2

// escrowed is a chain with an escrow that was released, whose events an instance has stored. No instance runs.
type escrowed struct {
	t       *testing.T
	chain   *testchain.Chain
	url     string
	db      *pgxpool.Pool
	factory common.Address
	escrow  common.Address
}

func newEscrowed(t *testing.T) *escrowed {
	t.Helper()
	t.Parallel()
	database := testpostgres.New(t, testpostgres.Migrated(store.Migrations()))
	e := &escrowed{t: t, chain: testchain.Simulated(t, testchain.SimulatedOptions{}), url: database.URL(), db: database.Pool(t)}
	e.factory = e.deploy()
	e.escrow = e.settle(e.factory)
	e.read(events.BuiltIn(), e.factory)
	return e
}

func (e *escrowed) backend() contract.Sealing {
	return contract.Sealing{Client: e.chain.Client(), Seal: func() { e.chain.Commit() }}
}

func (e *escrowed) deploy() common.Address {
	e.t.Helper()
	factory, err := escrowchain.DeployFactory(e.t.Context(), e.backend(), e.chain.Accounts[0].Key)
	require.NoError(e.t, err)
	return factory
}

// settle creates an escrow and releases it: five events.
func (e *escrowed) settle(factory common.Address) (escrow common.Address) {
	e.t.Helper()
	send := func(from int, to common.Address, data []byte) {
		receipt, err := contract.Send(e.t.Context(), e.backend(), e.chain.Accounts[from].Key, contract.Transaction{To: &to, Value: new(big.Int), Data: data, Gas: 2_000_000})
		require.NoError(e.t, err)
		if created, err := escrowchain.Created(receipt); err == nil {
			escrow = created
		}
	}
	send(0, factory, escrowchain.Create(escrowchain.Terms{
		Payee: e.chain.Accounts[1].Address, Arbiter: e.chain.Accounts[2].Address, ReleaseDelay: 60, ApprovalsRequired: 2,
	}))
	send(0, escrow, escrowchain.Approve())
	send(1, escrow, escrowchain.Approve())
	return escrow
}

func (e *escrowed) head() uint64 {
	e.t.Helper()
	head, err := e.chain.Client().BlockNumber(e.t.Context())
	require.NoError(e.t, err)
	return head
}

// read lets an instance read the chain up to the final block.
func (e *escrowed) read(set *events.Set, factories ...common.Address) {
	e.t.Helper()
	for range escrowFinality {
		e.chain.Commit()
	}
	client, err := evm.Open(evm.Config{ChainID: testchain.ChainID, Endpoints: []string{e.chain.URL()}})
	require.NoError(e.t, err)
	defer client.Close()
	s, err := store.New(e.db, store.Config{ChainID: testchain.ChainID, Events: set, Targets: []string{"topic"}})
	require.NoError(e.t, err)
	require.NoError(e.t, s.Register(e.t.Context(), store.Settings{Factories: factories, StartBlock: 1}))
	w := watch.New(watch.Config{
		Client: client, Store: s, Events: set, Factories: factories, Finality: evm.Finality{Depth: escrowFinality}, Alone: true, Interval: 20 * time.Millisecond,
	})
	ctx, stop := context.WithCancel(e.t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	require.Eventually(e.t, func() bool {
		chain, err := s.Chain(ctx)
		return err == nil && chain.Cursor.Number == e.head()-escrowFinality
	}, 2*time.Minute, 5*time.Millisecond)
	stop()
	require.NoError(e.t, <-done)
}

func (e *escrowed) exec(sql string, args ...any) {
	e.t.Helper()
	_, err := e.db.Exec(e.t.Context(), sql, args...)
	require.NoError(e.t, err)
}

// args returns a command for the chain.
func (e *escrowed) args(args ...string) []string {
	return append(append([]string{"escrow"}, args...), "--database-url", e.url)
}

// nodes returns a command for the chain and its node.
func (e *escrowed) nodes(args ...string) []string {
	return append(e.args(args...), "--rpc-url", e.chain.URL())
}

// last returns the last block that is read.
func (e *escrowed) last() string { return strconv.FormatUint(e.head()-escrowFinality, 10) }

func TestEscrowStatus_OfAChain_IsShown(t *testing.T) {
	e := newEscrowed(t)
	out := succeed(t, e.nodes("status")...)
	require.Regexp(t, `^chain +1337\nleader +none, epoch 1\nfactory +`+lower(e.factory)+`\nstart block +1\ncursor +`+e.last()+` 0x[0-9a-f]{64}, \d+\w old
moved +\d+s ago\nfinal +`+e.last()+` 0x[0-9a-f]{64}\nhead +\d+, 2 blocks after the cursor\nblocks +`+e.last()+` read, 0 events met again
escrows +1: 0 active, 1 released, 0 refunded\nparked +0\nunpublished +5 waiting and 0 dead to topic, the oldest for \d+s\ninstance +none\n$`, out)
	e.exec(`UPDATE escrow_outbox SET state = 'done', settled_at = now()`)
	e.exec(`UPDATE escrow_chains SET halted = 'block 7 has changed', watcher = 'two/1', watcher_until = now() + interval '1 hour'`)
	e.exec(`INSERT INTO relayer_instances (chain_id, instance_id, run, version, host, pid, is_leader, partition_number, total_partitions, heartbeat_at) VALUES
		(1337, 'one', '1', '', '', 1, false, 0, 2, now() - interval '10 minutes'), (1337, 'two', '1', '', '', 1, true, NULL, NULL, now())`)
	out = succeed(t, e.args("status")...)
	require.Contains(t, out, "\nhalted       block 7 has changed\n")
	require.Contains(t, out, "\nunpublished  none\n")
	require.Regexp(t, `\ninstance +one, heartbeat 10m ago, partition 0 of 2\ninstance +two, heartbeat \d+s ago, leads\n$`, out)
	require.NotContains(t, out, "head")
	s := read[struct {
		admin.Status
		Head, Lag *uint64
		HeadError string
	}](t, append(e.args("status"), "--rpc-url", "http://"+freeAddress(t)+"/v2/secret")...)
	require.Equal(t, uint64(1337), s.ChainID)
	require.Equal(t, map[events.State]int64{events.Released: 1}, s.ByState)
	require.Nil(t, s.Head)
	require.Contains(t, s.HeadError, "connection refused")
	require.NotContains(t, s.HeadError, "secret")
}

func TestEscrowPartitions_ByTotal_AreListed(t *testing.T) {
	e := newEscrowed(t)
	p := strconv.Itoa(events.Partition(e.escrow))
	require.Regexp(t, `^PARTITION +ESCROWS +UNPUBLISHED +OLDEST\n`+p+` +1 +5 +\d+s\n1 partition\n$`, succeed(t, e.args("partitions")...))
	list := read[[]admin.Partition](t, e.args("partitions", "--total", "3")...)
	require.Len(t, list, 3)
	require.Equal(t, int64(1), list[events.Partition(e.escrow)%3].Escrows)
	require.Equal(t, cli.ExitUsage, rollcall(t, e.args("partitions", "--total", "2521")...).code)
}

func TestEscrowEvents_ListsAndParked_AreShown(t *testing.T) {
	e := newEscrowed(t)
	out := succeed(t, e.args("events")...)
	require.Regexp(t, `^BLOCK +TIME +ESCROW +SEQUENCE +TYPE +STATUS +REVISION +TRANSACTION\n(.*\n){5}5 events\n$`, out)
	require.Regexp(t, `\n\d+ +20\d\d-\d\d-\d\dT\S+Z +`+lower(e.escrow)+` +5 +EscrowReleased +final +1 +0x[0-9a-f]{64}\n`, out)
	require.Contains(t, succeed(t, e.args("events", "--limit", "2", "--escrow", e.escrow.Hex())...), "\nthe newest 2 events\n")
	list := read[struct{ Events []events.Message }](t, e.args("events", "--to", "1")...)
	require.Equal(t, []events.Message{}, list.Events)
	require.Equal(t, "0 parked logs\n", succeed(t, e.args("events", "--parked")...))
	e.exec(`INSERT INTO escrow_parked (chain_id, block_number, block_hash, event_id, escrow, contract, topics, data, tx_hash, log_index, reason)
		VALUES (1337, 7, sha256('b'), 'id', NULL, $1, ARRAY[sha256('t')], '\x0102', sha256('x'), 4294967292, 'data: too short')`, e.factory[:])
	out = succeed(t, e.args("events", "--parked")...)
	require.Regexp(t, `^event +id\nblock +7 0x.*\ncontract +`+lower(e.factory)+`\ntransaction +0x.*\nlog index +4294967292\nreason +data: too short\ntopic +0x.*\ndata +0x0102\nparked +20.*\n\n1 parked log\n$`, out)
	parked := read[struct{ Parked []admin.Parked }](t, e.args("events", "--parked")...).Parked
	require.Equal(t, "data: too short", parked[0].Reason)
	for want, args := range map[string][]string{
		"contradicts --parked":  {"--follow", "--parked"},
		"from now on":           {"--follow", "--from", "3"},
		"is before 3":           {"--from", "3", "--to", "2"},
		"40 hexadecimal digits": {"--escrow", "0x1"},
		"allowed: 1 to 100000":  {"--limit", "0"},
	} {
		res := rollcall(t, e.args(append([]string{"events"}, args...)...)...)
		require.Equal(t, cli.ExitUsage, res.code, args)
		require.Contains(t, res.stderr, want)
	}
}

func TestEscrowEvents_Follow_PrintsWhatIsPublished(t *testing.T) {
	e := newEscrowed(t)
	table, lines := start(t, e.args("events", "--follow")...), start(t, e.args("events", "-f", "-o", "json", "--escrow", e.escrow.Hex())...)
	e.exec(`UPDATE escrow_outbox SET state = 'done', settled_at = now()`)
	e.settle(e.factory)
	e.read(events.BuiltIn(), e.factory)
	// A command that begins later than a publication sees only what is stored afterwards, so messages are published until it has begun.
	await := func(b *background, want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			succeed(t, e.args("replay", "--from", "1", "--to", e.last(), "--yes")...)
			e.exec(`UPDATE escrow_outbox SET state = 'done', settled_at = now() WHERE state = 'waiting'`)
			return strings.Contains(b.out.String(), want)
		}, 2*time.Minute, time.Second, "%s", &b.out)
	}
	await(table, "  "+lower(e.escrow)+"  5  EscrowReleased final replay  to topic\n")
	await(lines, `"replay":true`)
	require.Zero(t, table.stop())
	require.Zero(t, lines.stop())
	for line := range strings.Lines(lines.out.String()) {
		var p admin.Published
		require.NoError(t, json.Unmarshal([]byte(line), &p))
		require.Equal(t, e.escrow, p.Message.Escrow)
		require.Equal(t, "topic", p.To)
	}
}

func TestEscrowVerify_ExitCodes_TellEqualDifferentUnknown(t *testing.T) {
	e := newEscrowed(t)
	res := rollcall(t, e.nodes("verify", "--from", "1", "--to", e.last())...)
	require.Zero(t, res.code, res.stderr)
	require.Regexp(t, `^ANSWER +EVENTS +MISSING +FALSE +ERROR\nconfirmed +5 +0 +0 +-\n127\.0\.0\.1:\d+ +5 +0 +0 +-\nblocks 1 to `+e.last()+`: the messages are the chain's events\n$`, res.stdout)
	require.Empty(t, res.stderr)
	e.exec(`DELETE FROM processed_events WHERE message LIKE '%"sequence":5,%'`)
	res = rollcall(t, e.nodes("verify", "--from", "1", "--to", e.last())...)
	require.Equal(t, 1, res.code)
	require.Regexp(t, `\nconfirmed +5 +1 +0 +-\n(.*\n)+\nDIFFERENCE +BLOCK +HASH +ESCROW +TYPE +EVENT\nmissing +\d+ +0x\S+ +`+lower(e.escrow)+` +EscrowReleased +1337:`, res.stdout)
	require.Contains(t, res.stderr, "rollcall escrow verify: the messages differ from the chain: 1 missing, 0 false\nSee docs/escrow.md")

	res = rollcall(t, e.nodes("verify", "--from", "1", "--to", "1000")...)
	require.Equal(t, 3, res.code)
	require.Contains(t, res.stderr, "these blocks cannot be compared: blocks 1 to "+e.last()+" have been read and are final")
	res = rollcall(t, append(e.nodes("verify", "--from", "1", "--to", e.last()), "--chain-id", "5")...)
	require.Equal(t, 3, res.code)
	require.Contains(t, res.stderr, "the database has no chain 5: it has 1337\nGive --chain-id (CHAIN_ID).")
	res = rollcall(t, e.args("verify", "--from", "1", "--to", "2")...)
	require.Equal(t, cli.ExitUsage, res.code)
	require.Contains(t, res.stderr, "--rpc-url: is missing")
}

func TestEscrowReplay_PlanAndRun_EnqueueAgain(t *testing.T) {
	e := newEscrowed(t)
	require.Equal(t, "blocks 1 to "+e.last()+": 5 messages of 1 escrow, to topic\n", succeed(t, e.args("replay", "--from", "1", "--to", e.last(), "--dry-run")...))
	count := func() (n int) {
		require.NoError(t, e.db.QueryRow(t.Context(), `SELECT count(*) FROM escrow_outbox WHERE payload LIKE '%"replay":true}'`).Scan(&n))
		return n
	}
	res := rollcall(t, e.args("replay", "--from", "1", "--to", e.last())...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "not done: the standard input ended before an answer\nConfirm beforehand, with --yes.")
	require.Zero(t, count())
	require.Equal(t, "blocks 1 to "+e.last()+": 5 messages of 1 escrow, to topic\n5 messages enqueued again for 1 target\n",
		succeed(t, e.args("replay", "--from", "1", "--to", e.last(), "--yes")...))
	require.Equal(t, 5, count())
	r := read[struct {
		Messages int
		Done     bool
		Targets  []string
	}](t, e.args("replay", "--from", "1", "--to", e.last(), "--target", "topic", "--yes")...)
	require.Equal(t, 5, r.Messages)
	require.True(t, r.Done)
	require.Equal(t, []string{"topic"}, r.Targets)
	res = rollcall(t, e.args("replay", "--from", "1", "--to", e.last(), "--target", "webhook/x", "--yes")...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "the chain has no target \"webhook/x\": it has topic\nGive --target topic, or none for all.")
	require.Equal(t, 10, count())
	e.exec(`UPDATE escrow_chains SET halted = 'block 7 has changed'`)
	res = rollcall(t, e.args("replay", "--from", "1", "--to", e.last(), "--yes")...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "the chain is halted: block 7 has changed\n\"rollcall escrow resume\" goes on.")
}

func TestEscrowBackfill_NewFactory_PrintsTheSettings(t *testing.T) {
	e := newEscrowed(t)
	added := e.deploy()
	e.settle(added)
	e.read(events.BuiltIn(), e.factory)
	require.Equal(t, cli.ExitUsage, rollcall(t, e.nodes("backfill", "--from", "0", "--target", "topic")...).code, "its messages are for all targets")
	plan := "from block   1\nstart block  0\nnew factory  " + lower(added) + "\n"
	require.Equal(t, plan, succeed(t, e.nodes("backfill", "--from", "0", "--factory", added.Hex(), "--dry-run")...))
	out := succeed(t, e.nodes("backfill", "--from", "0", "--factory", added.Hex(), "--yes")...)
	require.Contains(t, out, plan+"5 late messages added. Start the instances with these settings now:\nFACTORY_ADDRESS=0x")
	require.Contains(t, out, "START_BLOCK=0\n")
	res := rollcall(t, e.nodes("backfill", "--from", "1", "--yes")...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "not done: the chain has these settings already\nGive an earlier block")
	res = rollcall(t, e.nodes("backfill", "--from", "1", "--factory", "0x1")...)
	require.Equal(t, cli.ExitUsage, res.code)
	require.Contains(t, rollcall(t, e.nodes("verify", "--from", "1", "--to", e.last())...).stdout, "the messages are the chain's events")
}

func TestEscrowResume_Fork_NeedsConsent(t *testing.T) {
	e := newEscrowed(t)
	res := rollcall(t, e.nodes("resume")...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "not done: the chain is not halted\n")
	e.exec(`UPDATE escrow_chains SET halted = 'an endpoint was wrong'`)
	require.Equal(t, cli.ExitUsage, rollcall(t, e.nodes("resume", "--target", "topic")...).code, "its messages are for all targets")
	require.Regexp(t, `^resumed: the chain has block \d+ 0x[0-9a-f]{64} again\n$`, succeed(t, e.nodes("resume")...))

	parent, err := e.chain.Client().HeaderByNumber(t.Context(), big.NewInt(2))
	require.NoError(t, err)
	e.chain.Fork(parent.Hash())
	e.chain.Rollback()
	e.chain.AdjustTime(time.Hour)
	for range 12 {
		e.chain.Commit()
	}
	e.exec(`UPDATE escrow_chains SET halted = 'a final block has changed at all endpoints'`)
	res = rollcall(t, e.nodes("resume")...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Regexp(t, `not done: the chain has another block: block \d+ was final as 0x\S+ and is 0x\S+\nCompare the nodes`, res.stderr)
	res = rollcall(t, e.nodes("resume", "--accept-fork")...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Regexp(t, `^halted +a final block has changed.*\nwas final +\d+ 0x.*\nis now +\d+ 0x.*\ngoes back +to the start block\nretracts +5 events\n`, res.stdout)
	out := succeed(t, e.nodes("resume", "--accept-fork", "--yes")...)
	require.Contains(t, out, "resumed: 5 events retracted, and the chain is read from the start block on\n")
	e.read(events.BuiltIn(), e.factory)
	require.Contains(t, rollcall(t, e.nodes("verify", "--from", "1", "--to", e.last())...).stdout, "the messages are the chain's events")
}

func TestDeadLetters_OfEscrows_AreShownAndReplayed(t *testing.T) {
	e := newEscrowed(t)
	e.exec(`UPDATE escrow_outbox SET state = 'dead', settled_at = now(), reason = 'too large' WHERE payload LIKE '%"sequence":1,%'`)
	command := func(args ...string) []string {
		return append(append([]string{"dead-letters"}, args...), "--of", "escrow-events", "--database-url", e.url)
	}
	list := read[struct{ DeadLetters []deadletter.Letter }](t, command("list")...).DeadLetters
	require.Len(t, list, 1)
	require.Equal(t, []any{"1337/topic", "EscrowCreated", "too large"}, []any{list[0].To, list[0].Event, list[0].Reason})
	require.Contains(t, succeed(t, command("replay", "--to", "topic")...), "escrow-events: 1 entry to be tried again\n")
	e.exec(`UPDATE escrow_outbox SET state = 'done', settled_at = now()`)
	res := rollcall(t, command("replay", list[0].ID)...)
	require.Equal(t, cli.ExitNotDone, res.code)
	require.Contains(t, res.stderr, "it was sent already, and was not given up\n\"rollcall escrow replay\" sends")
}
