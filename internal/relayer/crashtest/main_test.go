package crashtest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

var (
	seed    = flag.Uint64("crashtest.seed", rand.Uint64(), "what faults follow from")
	logs    = flag.String("crashtest.logs", "", "folder that keeps the logs of the relayers; by default they end with the test")
	product = flag.String("crashtest.binary", "", "the rollcall to crashtest; by default it is built")
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testpostgres.Main(built{m}), testchain.Leftovers()...)
}

// built builds the product before the tests run.
type built struct{ m *testing.M }

// Run implements the interface that goleak calls.
func (b built) Run() int {
	flag.Parse()
	if *product != "" {
		return b.m.Run()
	}
	dir, err := os.MkdirTemp("", "rollcall-crashtest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	*product = filepath.Join(dir, "rollcall")
	if err := testproc.Build(dir, "rollcall"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return b.m.Run()
}
