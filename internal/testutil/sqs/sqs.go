package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

// The environment that chooses the server.
const (
	endpointVariable = "SQS_TEST_ENDPOINT"
	programVariable  = "FAUXQS"
)

const (
	// npmPackage is the package that npx runs.
	npmPackage = "fauxqs@1.9.2"
	// npxPatience limits the download of npmPackage.
	npxPatience = time.Minute
)

// Main wraps the tests of a package, so that the shared server ends:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(testsqs.Main(m)) }
func Main(m interface{ Run() int }) interface{ Run() int } { return tests{m} }

type tests struct{ m interface{ Run() int } }

// Run implements the interface that goleak calls.
func (t tests) Run() int {
	code := t.m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.process != nil {
		shared.process.Kill()
	}
	return code
}

// shared is the server of all tests of a process.
var shared struct {
	sync.Mutex
	begun bool
	instance
	err error
}

// Endpoint returns the URL of a server that other tests use too.
func Endpoint(t testing.TB) string {
	t.Helper()
	if given := os.Getenv(endpointVariable); given != "" {
		return given
	}
	shared.Lock()
	defer shared.Unlock()
	if !shared.begun {
		shared.begun = true
		shared.instance, shared.err = launch()
	}
	check(t, shared.err)
	return shared.endpoint()
}

// check fails or skips a test if there is no server.
func check(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, errNoProgram) && os.Getenv("CI") != "true":
		t.Skip(err)
	default:
		t.Fatalf("start an SQS server: %v", err)
	}
}

// Server is a server for one test. Its methods fail the test instead of returning errors; they are for one goroutine,
// except Endpoint.
type Server struct {
	t testing.TB
	instance
}

// Own starts a server, which ends with the test.
func Own(t testing.TB) *Server {
	t.Helper()
	started, err := launch()
	check(t, err)
	s := &Server{t, started}
	t.Cleanup(func() {
		if s.process != nil {
			s.process.Kill()
		}
	})
	return s
}

// Endpoint returns the URL of the server. It stays the same for the life of the Server.
func (s *Server) Endpoint() string { return s.endpoint() }

// Stop ends the server, with all its queues and messages.
func (s *Server) Stop() {
	s.t.Helper()
	if s.process == nil {
		s.t.Fatalf("the SQS server %s does not run", s.Endpoint())
	}
	p := s.process
	s.process = nil
	p.Kill()
}

// Start starts a stopped server on its port, without queues.
func (s *Server) Start() {
	s.t.Helper()
	if s.process != nil {
		s.t.Fatalf("the SQS server %s runs already", s.Endpoint())
	}
	deadline := time.Now().Add(testproc.Patience)
	for {
		// Another process may hold the port for a moment.
		err := s.start()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("start the SQS server: %v", err)
		}
	}
}

// instance is a run of the program.
type instance struct {
	program string
	port    int
	process *testproc.Process // nil while stopped
}

func (i *instance) endpoint() string {
	return "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(i.port))
}

func launch() (i instance, err error) {
	if i.program, err = program(); err != nil {
		return i, err
	}
	// Another process may take a port between its choice and the server's bind.
	for attempt := 1; ; attempt++ {
		if i.port, err = testproc.FreePort(); err != nil {
			return i, err
		}
		if err = i.start(); err == nil || attempt == 5 {
			return i, err
		}
	}
}

// start starts the program and returns when it answers.
func (i *instance) start() error {
	cmd := exec.Command(i.program)
	cmd.Env = append(os.Environ(), "FAUXQS_PORT="+strconv.Itoa(i.port), "FAUXQS_HOST=")
	p, err := testproc.Start(cmd, func(line string) bool { return strings.Contains(line, "Server listening at") })
	if err != nil {
		return err
	}
	if err := i.answers(); err != nil {
		p.Kill()
		return err
	}
	i.process = p
	return nil
}

func (i *instance) answers() error {
	return call(i.endpoint(), "ListQueues", "{}", &struct{}{})
}

// QueueURL returns the URL that a server gives a queue. The queue does not exist yet.
func QueueURL(t testing.TB, endpoint, name string) string {
	t.Helper()
	var probe struct{ QueueURL string }
	if err := call(endpoint, "CreateQueue", `{"QueueName":"probe"}`, &probe); err != nil {
		t.Fatalf("ask the SQS server for a URL: %v", err)
	}
	return strings.TrimSuffix(probe.QueueURL, "probe") + name
}

// call sends a request without credentials.
func call(endpoint, operation, body string, answer any) error {
	ctx, cancel := context.WithTimeout(context.Background(), testproc.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.0")
	req.Header.Set("X-Amz-Target", "AmazonSQS."+operation)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answered %s", resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

// errNoProgram means that there is no SQS server on this machine.
var errNoProgram = errors.New("an SQS server is needed for this test: set " + endpointVariable + " to the URL of one, or " +
	programVariable + " to the program fauxqs, or install npx, which fetches it")

// program returns the path of fauxqs. It is searched once.
var program = sync.OnceValues(func() (string, error) {
	if given := os.Getenv(programVariable); given != "" {
		return given, nil
	}
	if root, err := repository(); err == nil {
		beside := filepath.Join(root, "..", "shared", "fauxqs", "fauxqs")
		if info, err := os.Stat(beside); err == nil && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	npx, err := exec.LookPath("npx")
	if err != nil {
		return "", errNoProgram
	}
	// npx would be the parent of the server and outlive or survive it. It only fetches the package and prints the path.
	ctx, cancel := context.WithTimeout(context.Background(), npxPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, npx, "--yes", "--package="+npmPackage, "--call=command -v fauxqs")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w; npx failed: %w", errNoProgram, err)
	}
	return strings.TrimSpace(string(out)), nil
})

// repository returns the folder of go.mod above the test's folder.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", os.ErrNotExist
		}
		dir = parent
	}
}
