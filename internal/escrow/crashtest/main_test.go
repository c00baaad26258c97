package crashtest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

// product is the path of rollcall.
var product string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testpostgres.Main(built{m}))
}

// built builds the product before the tests run.
type built struct{ m *testing.M }

// Run implements the interface that goleak calls.
func (b built) Run() int {
	dir, err := os.MkdirTemp("", "rollcall-crashtest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	product = filepath.Join(dir, "rollcall")
	if err := testproc.Build(dir, "rollcall"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return b.m.Run()
}
