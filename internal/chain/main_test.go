package chain

import (
	"log/slog"
	"testing"

	"github.com/ethereum/go-ethereum/log"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/testchain"
)

func TestMain(m *testing.M) {
	log.SetDefault(log.NewLogger(slog.DiscardHandler)) // the simulated nodes'
	goleak.VerifyTestMain(m, testchain.Leftovers()...)
}
