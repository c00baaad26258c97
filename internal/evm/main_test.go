package evm

import (
	"log/slog"
	"testing"

	"github.com/ethereum/go-ethereum/log"
	"go.uber.org/goleak"

	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
)

func TestMain(m *testing.M) {
	log.SetDefault(log.NewLogger(slog.DiscardHandler)) // of the simulated nodes
	goleak.VerifyTestMain(m, testchain.Leftovers()...)
}
