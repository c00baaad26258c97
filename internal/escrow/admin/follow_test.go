package admin

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
)

// While blocks are stored and messages are published in any order that keeps that of each escrow, a follower sees each message once for
// each target, in the order of its escrow.
func TestFollow_StoredAndPublishedConcurrently_EachOnceInOrder(t *testing.T) {
	f := newFixture(t)
	follower, err := f.Follow(t.Context(), nil)
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(3, 4))
	const blocks = 40
	want := 0
	published := make(chan error, 1)
	stored := make(chan struct{})
	go func() { // publishes the first message of some escrows at a time, as publishers may
		for done := false; ; {
			tag, err := f.db.Exec(context.WithoutCancel(t.Context()), `UPDATE escrow_outbox SET state = 'done', settled_at = clock_timestamp() WHERE state = 'waiting'
				AND random() < 0.5 AND NOT EXISTS (SELECT FROM escrow_outbox o WHERE o.subject = escrow_outbox.subject AND o.seq < escrow_outbox.seq AND o.state = 'waiting')`)
			var left int
			if err == nil {
				err = f.db.QueryRow(context.WithoutCancel(t.Context()), `SELECT count(*) FROM escrow_outbox WHERE state = 'waiting'`).Scan(&left)
			}
			if err != nil || done && tag.RowsAffected() == 0 && left == 0 {
				published <- err
				return
			}
			select {
			case <-stored:
				done = true
			default:
			}
		}
	}()
	ctx, stop := context.WithCancel(t.Context())
	seen := make(chan Published, 10_000)
	ended := make(chan error, 1)
	go func() {
		ended <- follower.Run(ctx, func(p Published) error {
			seen <- p
			return nil
		})
	}()
	for i := range blocks {
		escrow := common.Address{byte(1 + r.IntN(4))}
		if f.known[escrow] {
			want += len(f.final(approved(t, escrow, byte(i)), approved(t, escrow, byte(i))))
		} else {
			want += len(f.final(deployed(t, escrow)))
		}
	}
	close(stored)
	require.NoError(t, <-published)
	type queue struct {
		to     string
		escrow common.Address
	}
	sequence := map[queue]int64{}
	for range 2 * want { // two targets
		select {
		case p := <-seen:
			q := queue{p.To, p.Message.Escrow}
			sequence[q]++
			require.Equal(t, sequence[q], p.Message.Sequence)
			require.Equal(t, events.Final, p.Message.Status)
		case <-time.After(patience):
			require.FailNow(t, "a message was not seen")
		}
	}
	stop()
	require.NoError(t, <-ended)
	require.Empty(t, seen)
	require.Empty(t, follower.queues)
}
