package admin

import (
	"bytes"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/store"
)

// The bytes of a replay are those of the original apart from its member replay, and the order of an escrow holds.
func TestReplay_BlocksOfAnEscrow_SameBytesInOrder(t *testing.T) {
	f := newFixture(t)
	one, two := common.Address{1}, common.Address{2}
	f.final(deployed(t, one), deployed(t, two))
	f.final(approved(t, two, 7), approved(t, one, 7))
	f.final(released(t, one))
	f.publish(`true`)
	before := payloads(t, f.db, "topic")
	filter := Filter{Escrow: &one, From: 1, To: 2}
	plan, err := f.PlanReplay(t.Context(), filter, nil)
	require.NoError(t, err)
	require.Equal(t, Replay{From: 1, To: 2, Messages: 2, Escrows: 1, Targets: []string{"hook", "topic"}}, plan)
	n, err := f.Replay(t.Context(), filter, []string{"topic"})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	all := payloads(t, f.db, "topic")
	require.Len(t, payloads(t, f.db, "hook"), len(before))
	require.Equal(t, before, all[:len(before)])
	replays := all[len(before):]
	require.Len(t, replays, 2)
	for i, original := range [][]byte{before[0], before[3]} {
		require.Equal(t, string(bytes.TrimSuffix(original, []byte("}")))+`,"replay":true}`, string(replays[i]))
		m, want := decode(t, replays[i]), decode(t, original)
		require.True(t, m.Replay)
		m.Replay = false
		require.Equal(t, want, m)
		require.Equal(t, one, m.Escrow)
		again, err := decode(t, replays[i]).Encode()
		require.NoError(t, err)
		require.Equal(t, string(replays[i]), string(again), "as a message with the member is encoded")
	}
	var subject, partition string
	require.NoError(t, f.db.QueryRow(t.Context(), `SELECT min(subject || '|' || partition), max(subject || '|' || partition) FROM escrow_outbox
		WHERE lane = '1337/topic' AND payload LIKE '%0x0100000000000000000000000000000000000000"%'`).Scan(&subject, &partition))
	require.Equal(t, subject, partition, "a replay has the subject and the partition of the original")

	// A replay takes no sequence: the next message has the next one.
	m := f.final(approved(t, one, 4))[0]
	require.Equal(t, int64(4), m.Sequence)
}

// A retracted event has the removed block, which may be below that of an older message.
func TestReplay_RetractedEvent_InTheOrderOfTheSequence(t *testing.T) {
	f := newFixture(t)
	one := common.Address{1}
	b1, b2, b3 := block(1, 1), block(3, 1), block(2, 2)
	read := func(b events.Block, l events.Log) store.Read {
		found, _ := set.Match(chainID, []events.Log{l}, registry{one: true})
		return store.Read{Block: b, Found: found}
	}
	_, err := f.store.Commit(t.Context(), store.Step{Epoch: f.epoch, Final: b1, To: b2, Blocks: []store.Read{read(b1, deployed(t, one)), read(b2, approved(t, one, 7))}})
	require.NoError(t, err)
	_, err = f.store.Commit(t.Context(), store.Step{Epoch: f.epoch, From: b2, Ancestor: &b1, To: b3, Blocks: []store.Read{read(b3, released(t, one))}})
	require.NoError(t, err)
	before := len(payloads(t, f.db, "topic"))
	n, err := f.Replay(t.Context(), Filter{From: 1, To: 3}, []string{"topic"})
	require.NoError(t, err)
	require.Equal(t, 3, n)
	var sequences []int64
	for _, p := range payloads(t, f.db, "topic")[before:] {
		sequences = append(sequences, decode(t, p).Sequence)
	}
	require.Equal(t, []int64{1, 3, 4}, sequences)
}

func TestReplay_UnknownTarget_Refused(t *testing.T) {
	f := newFixture(t)
	f.final(deployed(t, common.Address{1}))
	const want = `the chain has no target "hok": it has hook, topic`
	_, err := f.PlanReplay(t.Context(), Filter{From: 1, To: 1}, []string{"topic", "hok"})
	require.EqualError(t, err, want)
	_, err = f.Replay(t.Context(), Filter{From: 1, To: 1}, []string{"topic", "hok"})
	require.EqualError(t, err, want)
	require.Len(t, payloads(t, f.db, "topic"), 1)
	n, err := f.Replay(t.Context(), Filter{From: 1, To: 1}, []string{"topic", "topic"})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Len(t, payloads(t, f.db, "topic"), 2, "each target is given once")
}

func TestReplay_Halted_Refused(t *testing.T) {
	f := newFixture(t)
	f.final(deployed(t, common.Address{1}))
	require.NoError(t, f.store.Halt(t.Context(), "block 1 has changed"))
	before := len(payloads(t, f.db, "topic"))
	_, err := f.Replay(t.Context(), Filter{From: 1, To: 1}, []string{"topic"})
	require.ErrorIs(t, err, store.ErrHalted)
	require.Len(t, payloads(t, f.db, "topic"), before)
}

func TestReplay_TooManyMessages_Refused(t *testing.T) {
	f := newFixture(t)
	m := f.final(deployed(t, common.Address{1}))[0]
	text, err := m.Encode()
	require.NoError(t, err)
	f.exec(`INSERT INTO processed_events (event_id, chain_id, escrow, status, block_number, place, message)
		SELECT n, $1, $2, 'final', 5, n, $3 FROM generate_series(1, $4) AS n`, chainID, m.Escrow[:], text, store.MaxReplay)
	_, err = f.Replay(t.Context(), Filter{From: 1, To: 5}, []string{"topic"})
	require.ErrorIs(t, err, store.ErrReplayTooLarge)
	require.Len(t, payloads(t, f.db, "topic"), 1)
}

// The targets are the stored ones, whichever messages the outbox has: those for a webhook were deleted, and the newest ones are for one
// target alone.
func TestTargets_OutboxLacksOne_AreTheStored(t *testing.T) {
	f := newFixture(t)
	want := []string{"hook", "topic"}
	f.final(deployed(t, common.Address{1}))
	f.publish(`true`)
	f.exec(`DELETE FROM escrow_outbox WHERE lane = '1337/hook'`)
	got, err := f.Targets(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, got)
	for range 2 {
		_, err = f.Replay(t.Context(), Filter{From: 1, To: 1}, []string{"hook"})
		require.NoError(t, err)
	}
	f.exec(`DELETE FROM escrow_outbox WHERE lane = '1337/topic'`)
	got, err = f.Targets(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, got)
	f.exec(`UPDATE escrow_chains SET targets = '{}'`)
	_, err = f.PlanReplay(t.Context(), Filter{To: 9}, nil)
	require.ErrorIs(t, err, store.ErrNoTarget)
}
