package escrowchain_test

import (
	"testing"

	"github.com/rollcall-dev/rollcall/internal/testutil/solidity"
)

func TestArtifacts_Sources_Match(t *testing.T) {
	t.Parallel()
	solidity.RequireArtifacts(t, "Escrow", "EscrowFactory", "Emitter")
}
