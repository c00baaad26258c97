package admin

import (
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
)

// fork replaces the blocks after one by others, which differ.
func (m *monitored) fork(after uint64) {
	m.t.Helper()
	parent, err := m.chain.Client().HeaderByNumber(m.t.Context(), new(big.Int).SetUint64(after))
	require.NoError(m.t, err)
	m.chain.Fork(parent.Hash())
	m.chain.Rollback()
	m.chain.AdjustTime(time.Hour)
}

// awaitHalt returns when the chain is halted.
func (m *monitored) awaitHalt() {
	m.t.Helper()
	require.Eventually(m.t, func() bool {
		var halted string
		err := m.db.QueryRow(m.t.Context(), `SELECT halted FROM escrow_chains`).Scan(&halted)
		return err == nil && halted != ""
	}, patience, 5*time.Millisecond)
}

// requireStack requires that the messages of each escrow behave as a stack, and returns the standing ones.
func (m *monitored) requireStack() (standing int) {
	m.t.Helper()
	stacks := map[common.Address][]string{}
	sequence := map[common.Address]int64{}
	revisions := map[string]int{}
	for _, one := range m.messages() {
		sequence[one.Escrow]++
		require.Equal(m.t, sequence[one.Escrow], one.Sequence)
		require.Greater(m.t, one.Revision, revisions[one.EventID])
		revisions[one.EventID] = one.Revision
		stack := stacks[one.Escrow]
		if one.Status == events.Retracted {
			require.Equal(m.t, stack[len(stack)-1], one.EventID)
			stacks[one.Escrow] = stack[:len(stack)-1]
			continue
		}
		stacks[one.Escrow] = append(stack, one.EventID)
	}
	for _, stack := range stacks {
		standing += len(stack)
	}
	return standing
}

// A fork below the final block: nothing happens without the operator's consent. With it the abandoned events are retracted, and the new
// branch is read.
func TestResume_ForkAccepted_RestatesTheChain(t *testing.T) {
	m := newMonitored(t, 2)
	m.settle(m.factory)
	for range 3 {
		m.chain.Commit()
	}
	after := m.head()
	lost := m.settle(m.factory)
	m.bury()
	stop := m.start()
	m.await()
	m.fork(after)
	won := m.settle(m.factory)
	for range 12 {
		m.chain.Commit()
	}
	m.awaitHalt()
	a := m.admin()
	before := len(m.messages())

	f, err := a.Fork(t.Context(), m.nodes())
	require.NoError(t, err)
	require.False(t, f.Same())
	require.Contains(t, f.Reason, "was final as "+f.Final.Hash.Hex())
	require.NotEqual(t, f.Final.Hash, f.Has.Hash)
	require.Equal(t, f.Final.Number, f.Has.Number)
	require.Equal(t, after-3, f.Ancestor.Number, "the newest block with events")
	require.Equal(t, 5, f.Abandoned)
	err = a.Resume(t.Context(), f, m.nodes(), false, func(int) {})
	require.ErrorIs(t, err, ErrFork)
	require.ErrorContains(t, err, f.Has.Hash.Hex())
	require.Len(t, m.messages(), before)

	require.NoError(t, a.Resume(t.Context(), f, m.nodes(), true, func(n int) { require.Equal(t, 5, n) }))
	m.await()
	stop()
	require.Equal(t, lost, won, "the factory gives the new branch's escrow the same address")
	require.Equal(t, m.verify().Events, m.requireStack())
	require.True(t, m.verify().Equal())
	require.Empty(t, m.halted())
	_, err = a.Fork(t.Context(), m.nodes())
	require.ErrorIs(t, err, ErrNotHalted)
	require.ErrorIs(t, a.Resume(t.Context(), f, m.nodes(), true, func(int) {}), store.ErrChanged)
}

func (m *monitored) halted() (why string) {
	m.t.Helper()
	require.NoError(m.t, m.db.QueryRow(m.t.Context(), `SELECT halted FROM escrow_chains`).Scan(&why))
	return why
}

// The fork is below all events: the chain is read from the start again.
func TestResume_ForkBelowAllEvents_ReadsFromTheStart(t *testing.T) {
	m := newMonitored(t, 1)
	start := m.head()
	m.settle(m.factory)
	m.bury()
	stop := m.start()
	m.await()
	m.fork(start)
	for range 12 {
		m.chain.Commit()
	}
	m.awaitHalt()
	a := m.admin()
	f, err := a.Fork(t.Context(), m.nodes())
	require.NoError(t, err)
	require.Nil(t, f.Ancestor)
	require.NoError(t, a.Resume(t.Context(), f, m.nodes(), true, func(int) {}))
	m.await()
	stop()
	require.Zero(t, m.requireStack())
	require.True(t, m.verify().Equal())
	var onChain int
	require.NoError(t, m.db.QueryRow(t.Context(), `SELECT count(*) FROM escrow_registry`).Scan(&onChain))
	require.Zero(t, onChain)
}

// The endpoints were wrong, and have the final block again: the chain goes on, and nothing is retracted.
func TestResume_FinalBlockIsBack_GoesOn(t *testing.T) {
	m := newMonitored(t, 2)
	m.settle(m.factory)
	m.bury()
	m.read()
	before := m.messages()
	s, err := store.New(m.db, store.Config{ChainID: chainID})
	require.NoError(t, err)
	require.NoError(t, s.Halt(t.Context(), "an endpoint's fault"))
	a := m.admin()
	f, err := a.Fork(t.Context(), m.nodes())
	require.NoError(t, err)
	require.True(t, f.Same())
	require.Zero(t, f.Abandoned)
	require.NoError(t, a.Resume(t.Context(), f, m.nodes(), true, func(int) {}))
	require.Equal(t, before, m.messages())
	m.settle(m.factory)
	m.bury()
	m.read()
	require.True(t, m.verify().Equal())
	require.Equal(t, 10, m.requireStack())
}

// A process that dies between two transactions leaves a halted chain, and the next one does the rest. Pending events are retracted, too.
func TestResume_InterruptedRetraction_IsRepeated(t *testing.T) {
	f := newFixture(t)
	one, two := common.Address{1}, common.Address{2}
	f.final(deployed(t, one))
	f.final(deployed(t, two))
	f.final(approved(t, two, 7), released(t, one))
	require.NoError(t, f.store.Halt(t.Context(), "block 3 has changed"))
	seen, err := f.Chain(t.Context())
	require.NoError(t, err)
	for _, change := range []func(*store.Chain){
		func(c *store.Chain) { c.Halted = "another reason" },
		func(c *store.Chain) { c.Cursor.Hash[0]++ },
		func(c *store.Chain) { c.Final.Hash[0]++ },
	} {
		other := seen
		change(&other)
		_, err := f.store.Abandon(t.Context(), other, 1, 2)
		require.ErrorIs(t, err, store.ErrChanged)
		require.ErrorIs(t, f.store.Resume(t.Context(), other, nil), store.ErrChanged)
	}
	f.exec(`UPDATE escrow_chains SET targets = '{}'`)
	_, err = f.store.Abandon(t.Context(), seen, 1, 2)
	require.ErrorIs(t, err, store.ErrNoTarget)
	f.exec(`UPDATE escrow_chains SET targets = '{new,topic}'`)
	n, err := f.store.Abandon(t.Context(), seen, 1, 2)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Len(t, payloads(t, f.db, "new"), 2, "an operator's messages are for the stored targets")
	require.ErrorIs(t, f.store.Resume(t.Context(), seen, new(block(1, 1))), store.ErrChanged, "an event stands")
	n, err = f.store.Abandon(t.Context(), seen, 1, 2)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, f.store.Resume(t.Context(), seen, new(block(1, 1))))
	var got []string
	for _, p := range payloads(t, f.db, "topic")[4:] {
		m := decode(t, p)
		require.Equal(t, events.Retracted, m.Status)
		got = append(got, m.Type)
	}
	require.Equal(t, []string{"EscrowReleased", "Approved", "EscrowDeployed"}, got)
	s, err := f.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[events.State]int64{events.Active: 1}, s.ByState, "the release is taken back, and the second escrow is not on the chain")
	require.Equal(t, [2]uint64{1, 1}, [2]uint64{s.Cursor.Number, s.Final.Number})
	require.Empty(t, s.Leader)
	f.elect()
	f.at = block(1, 1)
	m := f.final(deployed(t, two))[0]
	require.Equal(t, []any{int64(5), 3}, []any{m.Sequence, m.Revision})
}

// The search for the ancestor reads few blocks of a long chain, and finds the right one wherever the fork is.
func TestAncestor_AnyFork_IsFound(t *testing.T) {
	m := newMonitored(t, 1)
	var numbers []uint64
	for i := range 12 {
		m.create(m.factory)
		numbers = append(numbers, m.head())
		for range i % 4 {
			m.chain.Commit()
		}
	}
	m.bury()
	m.read()
	a := m.admin()
	_, err := m.db.Exec(t.Context(), `UPDATE escrow_chains SET halted = 'test', final_hash = sha256(final_hash), cursor_hash = sha256(cursor_hash)`)
	require.NoError(t, err)
	for i, number := range slices.Backward(numbers) {
		_, err := m.db.Exec(t.Context(), `UPDATE processed_events SET message = regexp_replace(convert_from(message, 'UTF8'), '"block_hash":"0x.{8}',
			'"block_hash":"0xeeeeeeee')::bytea WHERE block_number = $1`, int64(number))
		require.NoError(t, err)
		f, err := a.Fork(t.Context(), m.nodes())
		require.NoError(t, err)
		if i == 0 {
			require.Nil(t, f.Ancestor)
		} else {
			require.NotNil(t, f.Ancestor, "%d of %v", i, numbers)
			require.Equal(t, numbers[i-1], f.Ancestor.Number)
		}
		require.Equal(t, 2*(len(numbers)-i), f.Abandoned)
	}
}
