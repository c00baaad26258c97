package chain

import (
	"log/slog"
	"testing"

	"github.com/ethereum/go-ethereum/log"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	log.SetDefault(log.NewLogger(slog.DiscardHandler)) // the simulated nodes'
	goleak.VerifyTestMain(m,
		// What a simulated node leaves behind.
		goleak.IgnoreAnyFunction("github.com/syndtr/goleveldb/leveldb.(*DB).mpoolDrain"),
		goleak.IgnoreAnyFunction("github.com/ethereum/go-ethereum/core.(*txSenderCacher).cache"))
}
