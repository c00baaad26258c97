package proptest

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/testchain"
	"github.com/rollcall-dev/rollcall/internal/testpostgres"
)

var (
	seeds = flag.Int("proptest.seeds", 24, "how many random histories TestSeeds runs")
	first = flag.Uint64("proptest.seed", 1, "the first one's seed")
	told  = flag.Bool("proptest.history", false, "print each history, also of what passes")
	every = flag.Bool("proptest.all", false, "have TestFaults strike each step at its first, second and third time, not only the central ones")
)

// together is how many histories run at once. They mostly wait.
const together = 12

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", fmt.Sprint(together)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	goleak.VerifyTestMain(testpostgres.Main(m), testchain.Leftovers()...)
}
