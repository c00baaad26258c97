package store

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Whether a server's error leaves the outcome of a commit open depends on neither its language nor its wording.
func TestUncertain_ServerErrors(t *testing.T) {
	t.Parallel()
	s, _ := setup(t, 1)
	for code, unknown := range map[string]bool{
		"23505": false,
		"57014": false, // canceled, as by statement_timeout
		"40003": true,  // statement_completion_unknown
		"08006": true,  // a proxy lost its server
	} {
		err := s.transaction(t.Context(), func(*pgx.Batch) error { return nil }, func(b *pgx.Batch) error {
			b.Queue(`DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '` + code + `'; END $$`)
			return nil
		}, nil)
		require.Error(t, err)
		if unknown {
			require.ErrorIs(t, err, relayer.ErrUnknown, code)
		} else {
			require.NotErrorIs(t, err, relayer.ErrUnknown, code)
		}
	}
}
