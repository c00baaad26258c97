package store

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

// hangup cancels a context after a statement that contains a text.
type hangup struct {
	text string
	end  context.CancelFunc
}

type hitKey struct{}

func (h *hangup) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, hitKey{}, strings.Contains(data.SQL, h.text))
}

func (h *hangup) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if hit, _ := ctx.Value(hitKey{}).(bool); hit {
		h.end()
	}
}

// A committed change must not be reported as failed when the read after it fails, or callers would repeat it.
func TestIntent_ReadFails_IsNotReportedAsFailed(t *testing.T) {
	t.Parallel()
	database := testpostgres.New(t, testpostgres.Migrated(Migrations()))
	s, limits := open(t, database.Pool(t), 1)
	for name, c := range map[string]struct {
		text string
		ask  func(context.Context, *Store, *relayer.Transaction) error
	}{
		"Intend": {"SET intent =", func(ctx context.Context, s *Store, tx *relayer.Transaction) error {
			_, err := s.SetIntent(ctx, tx.ID, relayer.IntentCancel, "canceled")
			return err
		}},
		"AskBump": {"SET bump_requested_at", func(ctx context.Context, s *Store, tx *relayer.Transaction) error {
			_, err := s.RequestBump(ctx, tx.ID)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cfg, err := pgxpool.ParseConfig(database.URL())
			require.NoError(t, err)
			cfg.ConnConfig.Tracer = &hangup{c.text, cancel}
			db, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			defer db.Close()
			tx := accept(t, s, limits, newTx(s))[0]
			broadcast(t, s, tx)
			err = c.ask(ctx, New(db, s.Config), tx)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, relayer.ErrUnknown)
			now := read(t, s, tx)
			require.False(t, now.IntentReason == "" && now.BumpRequestedAt.IsZero(), "nothing was written")

			// A failed call that changes nothing, and reads nothing, returns an ordinary error.
			ctx, cancel = context.WithCancel(t.Context())
			defer cancel()
			cfg.ConnConfig.Tracer = &hangup{c.text, cancel}
			mute, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			defer mute.Close()
			require.NoError(t, s.RecordMined(t.Context(), []Mined{mined(tx, 1, relayer.PurposeSend, 3)}))
			err = c.ask(ctx, New(mute, s.Config), tx)
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, relayer.ErrUnknown)
		})
	}
}
