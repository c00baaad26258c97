package outboxtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
)

// Run runs the kit on a kind of table.
func Run(t *testing.T, s Setup) {
	for name, test := range map[string]func(*env){
		"Run_Backlog_FinishesEveryEntry": backlog,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(s.env(t))
		})
	}
}

func backlog(e *env) {
	list := append(entries("a", 500), entries("b", 200)...)
	list[3].Payload, list[3].Partition = []byte("content\x00"), 7
	e.insert(list[:600]...)
	r := newRecord()
	e.work(outbox.Config{Concurrency: 16, Handle: r.finish})
	n := e.box.NewNotifier(nil, nil)
	e.background(n.Run)
	for _, entry := range list[600:] {
		e.insert(entry)
		n.Notify()
	}
	r.await(e.t, 1, ids(list)...)
	e.settled(0)
	for _, entry := range list {
		works := r.of(entry.ID)
		require.Len(e.t, works, 1)
		require.Equal(e.t, entry, works[0].Entry)
		require.Equal(e.t, 1, works[0].Attempts)
		require.False(e.t, works[0].CreatedAt.IsZero())
	}
	done := 0
	if e.Table.KeepDone {
		done = len(list)
	}
	require.Equal(e.t, done, e.number(`SELECT count(*) FROM $name`))
	require.NoError(e.t, n.Health())
}

