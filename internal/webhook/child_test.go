package webhook

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// With these environment variables the test binary is a process that delivers until it is killed.
const (
	childDatabase = "ROLLCALL_WEBHOOK_TEST_DATABASE"
	childTarget   = "ROLLCALL_WEBHOOK_TEST_TARGET"
	childOwner    = "ROLLCALL_WEBHOOK_TEST_OWNER"
)

func child(database, target, owner string) int {
	ctx := context.Background()
	db, err := postgres.Open(ctx, postgres.Config{URL: database})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cfg := settings(Target{Name: "here", URL: target, SigningKeys: []string{secret}})
	cfg.tuning.lease = time.Second
	d, err := New(db, ownerNamed(owner).Source, cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_ = d.Run(ctx) // returns nil, and only after it is killed
	return 0
}

func TestDeliverer_ProcessKilled_AnotherDeliversItsClaims(t *testing.T) {
	t.Parallel()
	eachOwner(t, func(t *testing.T, o *Owner) {
		server := testpostgres.New(t, testpostgres.Migrated(o.Migrations))
		db := &testDB{server.Pool(t), o}
		arrived, gone := make(chan struct{}), make(chan struct{})
		first := true // requests come one after the other
		r := newReceiver(t, nil)
		r.answer = func(_ http.ResponseWriter, _ request) {
			if first {
				first = false
				close(arrived)
				<-gone
			}
		}
		id := newTx(t)
		change(t, db, id, 1, "here")
		change(t, db, id, 2, "here")
		process := exec.CommandContext(t.Context(), os.Args[0])
		process.Env = append(os.Environ(), childDatabase+"="+server.URL(), childTarget+"="+r.target("here").URL, childOwner+"="+o.Name)
		process.Stderr = os.Stderr
		require.NoError(t, process.Start())
		<-arrived
		require.NoError(t, process.Process.Kill())
		require.Error(t, process.Wait()) // killed
		close(gone)
		run(t, db, settings(r.target("here")))
		got, _ := r.wait("both revisions", func(got, _ []request) bool { return len(got) >= 3 })
		require.Equal(t, got[0].ID, got[1].ID)
		require.Equal(t, []int{1, 1, 2}, []int{got[0].Payload.Revision, got[1].Payload.Revision, got[2].Payload.Revision})
	})
}
