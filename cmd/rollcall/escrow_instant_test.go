package main

import (
	"fmt"
	"math/big"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/ethereum/go-ethereum"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dev/contract"
	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

// slowTopic accepts one message each 20 ms, so that messages of removed blocks may still wait.
type slowTopic struct{}

// React delays a request.
func (slowTopic) React(any) (handled bool, result any, err error) {
	<-time.After(20 * time.Millisecond)
	return false, nil, nil
}

// fork makes the block that is depth before the head the head again, without the transactions after it.
func (n *escrowNet) fork(depth int64) {
	n.t.Helper()
	head, err := n.chain.Client().BlockNumber(n.t.Context())
	require.NoError(n.t, err)
	parent, err := n.chain.Client().HeaderByNumber(n.t.Context(), big.NewInt(int64(head)-depth))
	require.NoError(n.t, err)
	n.chain.Fork(parent.Hash())
	n.chain.Rollback()
	n.chain.AdjustTime(time.Hour) // the blocks of the new branch differ
}

// standing returns the events that stand after the messages of an escrow, which must behave as a stack.
func standing(t *testing.T, messages []events.Message) (stack []events.Message) {
	t.Helper()
	for _, m := range messages {
		at := slices.IndexFunc(stack, func(s events.Message) bool { return s.EventID == m.EventID })
		if at >= 0 {
			require.Equal(t, events.Pending, stack[at].Status)
			require.Equal(t, stack[at].BlockHash, m.BlockHash)
		}
		switch {
		case m.Status == events.Retracted:
			require.Equal(t, len(stack)-1, at, "it takes back the newest standing event")
			stack = stack[:at]
		case at < 0:
			stack = append(stack, m)
		default:
			require.Equal(t, events.Final, m.Status)
			require.False(t, slices.ContainsFunc(stack[:at], func(s events.Message) bool { return s.Status != events.Final }), "the oldest first")
			stack[at] = m
		}
	}
	return stack
}

// awaitStanding returns when the events that stand at the topic are those of the chain, and final if all must be.
func (n *escrowNet) awaitStanding(final bool) {
	n.t.Helper()
	logs, err := n.chain.Client().FilterLogs(n.t.Context(), ethereum.FilterQuery{FromBlock: big.NewInt(1)})
	require.NoError(n.t, err)
	var want []string
	for _, l := range logs {
		want = append(want, fmt.Sprint(l.BlockHash, l.TxHash, l.Address, l.Index))
	}
	slices.Sort(want)
	require.Eventually(n.t, func() bool {
		var got []string
		for _, messages := range n.messages() {
			for _, m := range standing(n.t, messages) {
				if final && m.Status != events.Final {
					return false
				}
				got = append(got, fmt.Sprint(m.BlockHash, m.TxHash, m.Contract, m.LogIndex))
			}
		}
		slices.Sort(got)
		return slices.Equal(want, got)
	}, patience, 20*time.Millisecond)
}

// E9: instances follow the head by WebSocket, the chain is reorganized again and again, and the one that reads ends meanwhile: a consumer of a
// slow topic has the chain's events.
func TestEscrow_InstantReorganizations_ConsumerHasAStack(t *testing.T) {
	t.Parallel()
	chain := testchain.Simulated(t, testchain.SimulatedOptions{})
	n := newEscrowNetOn(t, chain, contract.Sealing{Client: chain.Client(), Seal: func() { chain.Commit() }},
		pstest.NewServer(pstest.ServerReactorOption{FuncName: "Publish", Reactor: slowTopic{}}))
	n.ws = true
	n.settle(3)
	const finality = 12
	var instances []*escrowInstance
	for _, id := range []string{"one", "two"} {
		instances = append(instances, n.start(id, "--delivery", "instant", "--finality", fmt.Sprint(finality)).await(t))
	}
	n.awaitStanding(false)
	for depth := int64(1); depth <= 4; depth++ {
		n.settle(1)
		n.awaitStanding(false)
		n.fork(depth)
		if depth == 3 {
			reads := slices.IndexFunc(instances, func(i *escrowInstance) bool { return escrowStatus(i.http).Leading })
			require.GreaterOrEqual(t, reads, 0)
			require.Zero(t, instances[reads].stop())
		}
		n.settle(2)
		n.awaitStanding(false)
	}
	for range finality {
		chain.Commit()
	}
	n.awaitStanding(true)
	retracted := 0
	for _, messages := range n.messages() {
		for _, m := range messages {
			if m.Status == events.Retracted {
				retracted++
			}
		}
	}
	require.Positive(t, retracted)
}
