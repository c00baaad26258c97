package cli

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/gateway"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// After a commit whose answer was lost, a backfill does not state which settings the chain has.
func TestBackfillPart_CommitUnknown_SettingsMayBeEither(t *testing.T) {
	t.Parallel()
	away, lost := errors.New("connection refused"), &postgres.UnknownError{Err: errors.New("connection reset")}
	require.Equal(t, "3 late messages added, and the settings are the former ones", backfillPart(3, away))
	require.Empty(t, backfillPart(0, away))
	for _, messages := range []int{0, 3} {
		part := backfillPart(messages, lost)
		require.Contains(t, part, "the settings may be the former or the new ones")
		err := escrowOutcome(backfillError(lost), part)
		require.ErrorAs(t, err, new(*gateway.UnknownOutcomeError))
		require.NotContains(t, err.Error(), "are the former ones")
	}
}
