package upstream_test

import (
	"testing"

	"go.uber.org/goleak"

	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testpostgres.Main(m), testchain.Leftovers()...)
}
