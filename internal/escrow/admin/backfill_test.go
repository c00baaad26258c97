package admin

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/escrow/watch"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// backfill adds factories from a block on, and returns the number of messages.
func (m *monitored) backfill(n Nodes, from uint64, factories ...common.Address) int {
	m.t.Helper()
	a := m.admin()
	a.part = 4
	plan, err := a.PlanBackfill(m.t.Context(), n, from, factories)
	require.NoError(m.t, err)
	messages, err := a.Backfill(m.t.Context(), plan, n, func(uint64, int) {})
	require.NoError(m.t, err)
	m.settings = store.Settings{Factories: plan.AllFactories, StartBlock: plan.StartBlock}
	return messages
}

// requireOnce requires that each event of the chain has one message, and the sequences no gaps. It returns how many are late, by escrow.
func (m *monitored) requireOnce() map[common.Address]int {
	m.t.Helper()
	all := m.messages()
	v := m.verify()
	require.True(m.t, v.Equal(), "%v", v.Differences)
	require.Len(m.t, all, v.Events)
	sequence, late := map[common.Address]int64{}, map[common.Address]int{}
	for _, one := range all {
		sequence[one.Escrow]++
		require.Equal(m.t, sequence[one.Escrow], one.Sequence)
		require.Equal(m.t, events.Final, one.Status)
		if one.Late {
			late[one.Escrow]++
		}
	}
	return late
}

// states returns the number of escrows by state.
func (m *monitored) states() map[events.State]int64 {
	m.t.Helper()
	s, err := m.admin().Status(m.t.Context())
	require.NoError(m.t, err)
	return s.ByState
}

// A factory is added while a process with the former settings reads the chain. Nothing is missed or repeated, and that process stores
// nothing after the end, and ends itself.
func TestBackfill_NewFactoryWhileOthersRead_NothingMissed(t *testing.T) {
	m := newMonitored(t, 2)
	added := m.deployFactory()
	from := m.head()
	own, late := m.settle(m.factory), m.settle(added)
	half := m.create(added)
	m.bury()
	_, done := m.run()
	m.await()
	former := m.settings
	require.Equal(t, 7, m.backfill(m.nodes(), from, added), "five of one escrow and two of the other")
	settings := m.settings
	require.Equal(t, uint64(1), settings.StartBlock, "the earlier one stays")
	require.ElementsMatch(t, []common.Address{m.factory, added}, settings.Factories)

	// The process has the former settings: it stores nothing more, and ends with both values.
	m.settle(added)
	m.bury()
	select {
	case err := <-done:
		require.ErrorIs(t, err, store.ErrSettings)
		differs, ok := errors.AsType[*store.SettingsError](err)
		require.True(t, ok)
		require.Equal(t, "FACTORY_ADDRESS", differs.Setting)
		require.Equal(t, strings.ToLower(former.Factories[0].Hex()), differs.Given)
		require.Contains(t, differs.Stored, strings.ToLower(added.Hex()))
	case <-time.After(patience):
		t.Fatal("the watcher has not ended")
	}
	var watcher string
	require.NoError(t, m.db.QueryRow(t.Context(), `SELECT watcher FROM escrow_chains`).Scan(&watcher))
	require.Empty(t, watcher, "it has given the lease back")
	require.Len(t, m.messages(), 12)
	m.read()
	require.Equal(t, map[common.Address]int{late: 5, half: 2}, m.requireOnce())
	require.Equal(t, map[events.State]int64{events.Released: 3, events.Active: 1}, m.states())
	require.NotEqual(t, own, late)

	s, err := store.New(m.db, store.Config{ChainID: chainID, Events: events.BuiltIn()})
	require.NoError(t, err)
	require.ErrorContains(t, s.Register(t.Context(), store.Settings{Factories: []common.Address{m.factory}, StartBlock: 1}), "FACTORY_ADDRESS is")
}

// The start was too late: the escrows from before it are added, also what happened to them after it.
func TestBackfill_EarlierStart_EscrowsFromBefore(t *testing.T) {
	m := newMonitored(t, 1)
	early := m.create(m.factory)
	m.settings.StartBlock = m.head() + 1
	on := m.settle(m.factory)
	m.send(0, early, approve)
	m.send(1, early, approve)
	m.bury()
	m.read()
	require.Len(t, m.messages(), 5)
	require.Equal(t, 5, m.backfill(m.nodes(), 0))
	require.Zero(t, m.settings.StartBlock)
	require.Equal(t, map[common.Address]int{early: 5}, m.requireOnce())
	require.Equal(t, map[events.State]int64{events.Released: 2}, m.states())
	m.settle(m.factory)
	m.bury()
	m.read()
	require.Zero(t, m.requireOnce()[on])
}

// It was planned before the first block was stored, and targets were added while it ran: its messages are for those of the time at which they
// are stored, and without any they are not stored.
func TestBackfill_PlannedBeforeTheFirstBlock_MessagesForTheStoredTargets(t *testing.T) {
	m := newMonitored(t, 1)
	early := m.settle(m.factory)
	m.settings.StartBlock = m.head() + 1
	m.settle(m.factory)
	m.bury()
	register := func(targets ...string) {
		s, err := store.New(m.db, store.Config{ChainID: chainID, Events: m.set, Targets: targets})
		require.NoError(t, err)
		require.NoError(t, s.Register(t.Context(), m.settings))
	}
	register("topic")
	a := m.admin()
	a.part = 2
	plan, err := a.PlanBackfill(t.Context(), m.nodes(), 0, nil)
	require.NoError(t, err)
	m.read()
	before := len(m.messages())
	register()
	messages, err := a.Backfill(t.Context(), plan, m.nodes(), func(uint64, int) {})
	require.ErrorIs(t, err, store.ErrNoTarget)
	require.Zero(t, messages)
	register("topic")
	seen := 0
	messages, err = a.Backfill(t.Context(), plan, m.nodes(), func(_ uint64, n int) {
		if n > 0 && seen == 0 {
			seen = n
			register("topic", "hook")
		}
	})
	require.NoError(t, err)
	require.Equal(t, 5, messages)
	require.Len(t, m.messages(), before+5)
	require.Positive(t, seen)
	require.Len(t, payloads(t, m.db, "hook"), 5-seen)
	m.settings.StartBlock = plan.StartBlock
	require.Equal(t, map[common.Address]int{early: 5}, m.requireOnce())
}

// It ends half-way: another one does the rest.
func TestBackfill_Interrupted_IsRepeated(t *testing.T) {
	m := newMonitored(t, 1)
	added := m.deployFactory()
	first := m.settle(added)
	second := m.settle(added)
	for range 3 {
		m.settle(m.factory)
	}
	m.bury()
	m.read()
	a := m.admin()
	a.pause, a.part = time.Millisecond, 4
	plan, err := a.PlanBackfill(t.Context(), m.nodes(), 1, []common.Address{added})
	require.NoError(t, err)
	messages, err := a.Backfill(t.Context(), plan, m.nodes(), func(uint64, int) {
		m.proxies[0].SetRules(proxy.Rule{Methods: []string{"eth_getLogs"}, Fault: proxy.Fault{Kind: proxy.Reject}})
	})
	require.ErrorIs(t, err, watch.ErrUnconfirmed)
	require.Positive(t, messages)
	require.Less(t, messages, 10)
	m.proxies[0].SetRules()
	chain, err := a.Chain(t.Context())
	require.NoError(t, err)
	require.Equal(t, []common.Address{m.factory}, chain.Factories)
	m.read() // the lease is free at once

	require.Equal(t, 10-messages, m.backfill(m.nodes(), 1, added))
	require.Equal(t, map[common.Address]int{first: 5, second: 5}, m.requireOnce())
}

// fewerEvents returns the built-in set without approvals.
func fewerEvents(t *testing.T) *events.Set {
	t.Helper()
	folder := t.TempDir()
	abi, err := os.ReadFile("../events/builtin.abi.json")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "abi.json"), abi, 0o600))
	text := `
factory:
  abi: [abi.json]
  events:
    - {event: "EscrowDeployed(address,address,address,address,uint256,uint256,uint8)", escrow: escrow, status: active, payer: payer, payee: payee, amount: amount}
    - {event: "EscrowDeployed(address,address,address,uint256,uint256,uint8)", escrow: escrow, status: active, payer: payer, payee: payee, amount: amount}
escrow:
  abi: [abi.json]
  events:
    - {event: "EscrowCreated(address,address,address,uint256,uint256,uint8)", payer: payer, payee: payee, amount: amount}
    - {event: "EscrowReleased(address,uint256,uint256)", status: released}
    - {event: "EscrowRefunded(address,uint256,uint256)", status: refunded}
`
	file := filepath.Join(folder, "events.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	set, err := events.Load(file)
	require.NoError(t, err)
	return set
}

// A larger set of events: what it adds is late, and the facts of the escrows stay those of their latest events.
func TestBackfill_MoreEvents_AreLate(t *testing.T) {
	m := newMonitored(t, 1)
	m.set = fewerEvents(t)
	escrow := m.settle(m.factory)
	m.bury()
	m.read()
	require.Len(t, m.messages(), 3)
	_, err := m.admin().Verify(t.Context(), m.nodes(), 1, m.head()-depth, func(uint64) {})
	require.ErrorIs(t, err, ErrEvents)
	require.Equal(t, 2, m.backfill(m.nodes(), 1))
	m.set = events.BuiltIn()
	require.Equal(t, map[common.Address]int{escrow: 2}, m.requireOnce())
	require.Equal(t, map[events.State]int64{events.Released: 1}, m.states())

	fewer := m.nodes()
	fewer.Events = fewerEvents(t)
	_, err = m.admin().PlanBackfill(t.Context(), fewer, 1, nil)
	require.ErrorIs(t, err, ErrRemoves)
	require.ErrorContains(t, err, "Approved(")
}

// A false address would stay in the settings for ever.
func TestBackfill_FactoryWithoutCode_Refused(t *testing.T) {
	m := newMonitored(t, 2)
	m.settle(m.factory)
	m.bury()
	m.read()
	a := m.admin()
	plan, err := a.PlanBackfill(t.Context(), m.nodes(), 1, []common.Address{{0xfb}})
	require.NoError(t, err)
	_, err = a.Backfill(t.Context(), plan, m.nodes(), func(uint64, int) {})
	require.ErrorIs(t, err, watch.ErrNoCode)
	require.ErrorContains(t, err, common.Address{0xfb}.String()+" at 127.0.0.1:")
	chain, err := a.Chain(t.Context())
	require.NoError(t, err)
	require.Equal(t, m.settings.Factories, chain.Factories)
}

func TestPlanBackfill_NothingNewOrHalted_Refused(t *testing.T) {
	f := newFixture(t)
	n := Nodes{Events: set}
	_, err := f.PlanBackfill(t.Context(), n, 1, []common.Address{factory})
	require.ErrorIs(t, err, ErrNothingNew)
	other := common.Address{0xfb}
	plan, err := f.PlanBackfill(t.Context(), n, 0, []common.Address{other, factory, other})
	require.NoError(t, err)
	require.Equal(t, &Backfill{
		From: 1, Factories: []common.Address{other}, Events: []string{}, StartBlock: 0, AllFactories: []common.Address{factory, other}, seen: plan.seen,
	}, plan)
	_, err = f.store.Commit(t.Context(), store.Step{Epoch: f.epoch, To: block(1, 1)})
	require.NoError(t, err)
	_, err = f.PlanBackfill(t.Context(), n, 0, nil)
	require.ErrorIs(t, err, ErrNoFinal)
	require.NoError(t, f.store.Halt(t.Context(), "block 1 has changed"))
	_, err = f.PlanBackfill(t.Context(), n, 0, nil)
	require.ErrorIs(t, err, store.ErrHalted)
}

// Late events are older than those that an escrow has: its facts stay those of its latest events, apart from what only the late ones have.
func TestBackfill_OlderEvents_KeepTheLatestFacts(t *testing.T) {
	f := newFixture(t)
	one := common.Address{1}
	f.final()
	first := f.at
	f.final(deployed(t, one))
	f.final(released(t, one))
	seen, err := f.Chain(t.Context())
	require.NoError(t, err)
	earlier := deployed(t, one) // by another factory, so that it is another event
	earlier.Contract = common.Address{0xfb}
	found, _ := set.Match(chainID, []events.Log{earlier}, factories{})
	require.Len(t, found, 1)
	late := store.Late{Seen: seen, To: 1, Blocks: []store.Read{{Block: first, Found: found}}}
	for _, want := range []int{1, 0} { // it is stored once
		n, err := f.store.CommitLate(t.Context(), late)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	var state string
	var created, sequence int
	require.NoError(t, f.db.QueryRow(t.Context(), `SELECT state, created, sequence FROM escrow_accounts`).Scan(&state, &created, &sequence))
	require.Equal(t, []any{"released", 1, 3}, []any{state, created, sequence})
}

// factories takes all contracts for factories.
type factories struct{}

func (factories) Factory(common.Address) bool { return true }
func (factories) Escrow(common.Address) bool  { return false }

// At the end of a backfill the pending messages are retracted before late ones are added, and the cursor is the final block: the next watcher reads the rest with the
// new settings.
func TestBackfillEnd_PendingMessages_AreRetracted(t *testing.T) {
	f := newFixture(t)
	one, two := common.Address{1}, common.Address{2}
	f.final(deployed(t, one))
	b2, b3 := block(2, 1), block(3, 1)
	found, _ := set.Match(chainID, []events.Log{approved(t, one, 7)}, f.known)
	_, err := f.store.Commit(t.Context(), store.Step{Epoch: f.epoch, From: f.at, Blocks: []store.Read{{Block: b2}, {Block: b3, Found: found}}, To: b3})
	require.NoError(t, err)
	seen, err := f.Chain(t.Context())
	require.NoError(t, err)
	settings := store.Settings{Factories: []common.Address{factory, {0xfb}}, StartBlock: 1}
	epoch, err := f.store.TakeLease(t.Context(), "backfill", time.Minute)
	require.NoError(t, err)

	more, _ := set.Match(chainID, []events.Log{deployed(t, two), approved(t, one, 5)}, f.known)
	late := store.Late{Seen: seen, To: 1, Blocks: []store.Read{{Block: f.at, Found: more}}, Last: &store.LastLate{Epoch: epoch, Settings: settings}}
	for name, wrong := range map[string]func(*store.Late){
		"not the lease":  func(l *store.Late) { l.Last = &store.LastLate{Epoch: epoch - 1, Settings: settings} },
		"not final":      func(l *store.Late) { l.To, l.Last = 2, nil },
		"not the newest": func(l *store.Late) { l.To = 0 },
	} {
		l := late
		wrong(&l)
		_, err := f.store.CommitLate(t.Context(), l)
		require.ErrorIs(t, err, store.ErrFenced, name)
	}
	other := late
	other.Seen.StartBlock = 9
	_, err = f.store.CommitLate(t.Context(), other)
	require.ErrorIs(t, err, store.ErrChanged)

	n, err := f.store.CommitLate(t.Context(), late)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	chain, err := f.Chain(t.Context())
	require.NoError(t, err)
	require.Equal(t, settings, chain.Settings)
	require.Equal(t, [2]uint64{1, 1}, [2]uint64{chain.Cursor.Number, chain.Final.Number})
	all := payloads(t, f.db, "topic")
	require.Len(t, all, 5)
	pending, retracted := decode(t, all[1]), decode(t, all[2])
	require.Equal(t, []any{events.Retracted, false, pending.EventID}, []any{retracted.Status, retracted.Late, retracted.EventID})
	for i, escrow := range []common.Address{two, one} {
		late := decode(t, all[3+i])
		require.Equal(t, []any{events.Final, true, escrow}, []any{late.Status, late.Late, late.Escrow})
	}
	require.Equal(t, int64(4), decode(t, all[4]).Sequence, "the retraction takes back the newest event, and the late one follows it")
	_, err = f.store.Commit(t.Context(), store.Step{Epoch: epoch, From: f.at, To: b2})
	require.ErrorIs(t, err, store.ErrSettings, "it has registered the former settings")
}
