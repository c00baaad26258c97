package table

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
)

// The poll is not part of this test: listen alone calls wake.
func TestNotify_ReachesListeners_AlsoAfterALostConnection(t *testing.T) {
	t.Parallel()
	db := database(t)
	cfg, err := queue.Config{}.Complete()
	require.NoError(t, err)
	n := newNotifier(db, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	woken, ended := make(chan struct{}, 100), make(chan error, 1)
	listening := make(chan struct{})
	go func() { ended <- n.Run(ctx) }()
	go func() {
		defer close(listening)
		listen(ctx, db, func() { woken <- struct{}{} })
	}()
	wait := func(what string) {
		t.Helper()
		select {
		case <-woken:
		case <-time.After(30 * time.Second):
			require.FailNow(t, "no wake-up", what)
		}
	}
	wait("it listens")
	for range 3 {
		n.Notify()
		wait("a notification")
	}
	// The listening connection's last query is LISTEN only until its first ping. The pool replaces the others.
	exec(t, db, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE pid <> pg_backend_pid() AND datname = current_database() AND backend_type = 'client backend'`)
	wait("it listens again")
	n.Notify()
	wait("a notification")
	cancel()
	require.NoError(t, <-ended)
	<-listening
}
