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
	seeds = flag.Int("proptest.seeds", 16, "how many random histories TestSeeds runs")
	first = flag.Uint64("proptest.seed", 1, "the first one's seed")
	told  = flag.Bool("proptest.history", false, "print each history, also of what passes")
	every = flag.Bool("proptest.all", false, "have TestFaults try every kind of fault, at the first, second and third time of every step")
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
