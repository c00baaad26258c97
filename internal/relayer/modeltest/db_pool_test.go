package modeltest

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// shelf lends databases to the histories of a test. Each history has one exclusively, and the next one gets it with
// another chain id, because making a database takes a quarter of a history's time.
type shelf struct {
	t *testing.T

	mu   sync.Mutex
	free []database
}

type database struct {
	url  string
	pool *pgxpool.Pool
}

// chains counts the used chain ids.
var chains atomic.Uint64

func newShelf(t *testing.T) *shelf { return &shelf{t: t} }

// take lends a database until t ends.
func (s *shelf) take(t *testing.T) (database, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var d database
	if n := len(s.free); n > 0 {
		d, s.free = s.free[n-1], s.free[:n-1]
	} else {
		made := testpostgres.New(s.t, testpostgres.Migrated(store.Migrations()))
		d = database{made.URL(), made.Pool(s.t)}
	}
	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.free = append(s.free, d)
	})
	return d, 1000 + chains.Add(1)
}
