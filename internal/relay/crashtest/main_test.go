package crashtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testrabbitmq "github.com/rollcall-dev/rollcall/internal/testutil/rabbitmq"
	testsqs "github.com/rollcall-dev/rollcall/internal/testutil/sqs"
)

// product is the path of rollcall.
var product string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testsqs.Main(testrabbitmq.Main(testpostgres.Main(built{m}))))
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
	build := exec.Command("go", "build", "-tags", "hashicorpmetrics", "-o", product, "../../../cmd/rollcall")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the product: %v\n%s", err, out)
		return 1
	}
	return b.m.Run()
}
