package modeltest

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	testchain "github.com/rollcall-dev/rollcall/internal/testutil/chain"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
)

var (
	seeds     = flag.Int("modeltest.seeds", 0, "how many random histories TestSeeds runs (16, with -short 6)")
	first     = flag.Uint64("modeltest.seed", 1, "the first one's seed")
	histories = flag.Bool("modeltest.history", false, "print each history, also of what passes")
	every     = flag.Bool("modeltest.all", false, "have TestFaults try every kind of fault, at the first, second and third time of every step")
)

// together is how many histories run concurrently. Twelve are no faster on two cores, and on a busy machine their trackers
// lose their leases so often that none gets far.
const together = 4

func TestMain(m *testing.M) {
	flag.Parse()
	if *seeds == 0 {
		if *seeds = 16; testing.Short() {
			*seeds = 6
		}
	}
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
