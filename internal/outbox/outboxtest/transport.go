package outboxtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
)

// RunTransport runs the tests of a transport. open returns a transport for an empty queue, which delivers a message again within a
// minute if it was not acknowledged. Calls with the same test return transports of the same queue.
func RunTransport(t *testing.T, open func(t testing.TB) outbox.Transport) {
	for name, test := range map[string]func(*testing.T, func(testing.TB) outbox.Transport){
		"Receive_Sent_DeliversEveryID":          transportDelivers,
		"Receive_NotAcknowledged_DeliversAgain": transportRedelivers,
		"Receive_Acknowledged_DeliversNoMore":   transportEnds,
		"Receive_Idle_ReturnsNothing":           transportIdle,
		"Receive_ContextEnds_Returns":           transportStops,
		"Receive_TwoReceivers_ShareMessages":    transportShares,
		"Acknowledge_Twice_IsHarmless":          transportTwice,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open)
		})
	}
}

// send sends n ids, some of them long.
func send(t *testing.T, tr outbox.Transport, n int) map[string]bool {
	t.Helper()
	list, set := make([]string, n), map[string]bool{}
	for i := range list {
		list[i] = fmt.Sprintf("%s-%d", t.Name()[strings.LastIndex(t.Name(), "/")+1:], i)
		if i%2 == 1 {
			list[i] += strings.Repeat("x", 100)
		}
		set[list[i]] = true
	}
	require.NoError(t, tr.Send(t.Context(), list))
	return set
}

// receive receives messages until all ids of a set have arrived, and removes them from the set.
func receive(t *testing.T, tr outbox.Transport, missing map[string]bool) (all []outbox.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(missing) > 0 {
		const most = 10
		messages, err := tr.Receive(ctx, most)
		require.NoError(t, err)
		require.LessOrEqual(t, len(messages), most)
		for _, m := range messages {
			delete(missing, m.ID)
		}
		all = append(all, messages...)
	}
	return all
}

func transportDelivers(t *testing.T, open func(testing.TB) outbox.Transport) {
	tr := open(t)
	missing := send(t, tr, 256)
	for id := range send(t, tr, 3) {
		missing[id] = true
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(missing) > 0 {
		messages, err := tr.Receive(ctx, 256)
		require.NoError(t, err)
		for _, m := range messages {
			delete(missing, m.ID)
		}
		require.NoError(t, tr.Acknowledge(ctx, messages))
	}
	require.NoError(t, tr.Send(t.Context(), nil))
	require.NoError(t, tr.Acknowledge(t.Context(), nil))
}

func transportRedelivers(t *testing.T, open func(testing.TB) outbox.Transport) {
	tr := open(t)
	receive(t, tr, send(t, tr, 20))
	again := map[string]bool{}
	for i, m := range receive(t, open(t), send(t, tr, 1)) { // by another process, while the connection lives
		if i == 0 {
			again[m.ID] = true
		}
	}
	require.NoError(t, tr.Acknowledge(t.Context(), receive(t, tr, again)))
}

func transportEnds(t *testing.T, open func(testing.TB) outbox.Transport) {
	tr := open(t)
	first := receive(t, tr, send(t, tr, 20))
	require.NoError(t, tr.Acknowledge(t.Context(), first[:10]))
	ended := map[string]bool{}
	for _, m := range first[:10] {
		ended[m.ID] = true
	}
	missing := map[string]bool{}
	for _, m := range first[10:] {
		if !ended[m.ID] {
			missing[m.ID] = true
		}
	}
	for _, m := range receive(t, tr, missing) { // those that were not acknowledged come again
		require.False(t, ended[m.ID], "%s was acknowledged", m.ID)
	}
}

func transportStops(t *testing.T, open func(testing.TB) outbox.Transport) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	messages, err := open(t).Receive(ctx, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Empty(t, messages)
}

func transportIdle(t *testing.T, open func(testing.TB) outbox.Transport) {
	messages, err := open(t).Receive(t.Context(), 1)
	require.NoError(t, err)
	require.Empty(t, messages)
}

func transportShares(t *testing.T, open func(testing.TB) outbox.Transport) {
	one, two := open(t), open(t)
	missing := send(t, one, 40)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(missing) > 0 {
		for _, tr := range []outbox.Transport{one, two} {
			if len(missing) == 0 {
				break
			}
			messages, err := tr.Receive(ctx, 1)
			require.NoError(t, err)
			require.LessOrEqual(t, len(messages), 1)
			for _, m := range messages {
				delete(missing, m.ID)
			}
			require.NoError(t, tr.Acknowledge(ctx, messages))
		}
	}
}

func transportTwice(t *testing.T, open func(testing.TB) outbox.Transport) {
	tr := open(t)
	messages := receive(t, tr, send(t, tr, 2))
	require.NoError(t, tr.Acknowledge(t.Context(), messages))
	require.NoError(t, tr.Acknowledge(t.Context(), messages))
	receive(t, tr, send(t, tr, 1))
}
