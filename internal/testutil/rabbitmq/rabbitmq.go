package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

// Main wraps the tests of a package, so that the shared server and its files are removed:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(testrabbitmq.Main(m)) }
func Main(m interface{ Run() int }) interface{ Run() int } { return tests{m} }

type tests struct{ m interface{ Run() int } }

// Run implements the interface that goleak calls.
func (t tests) Run() int {
	code := t.m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.node != nil {
		if err := shared.node.remove(); err != nil {
			fmt.Fprintln(os.Stderr, "shared RabbitMQ of the tests:", err)
			code = max(code, 1)
		}
	}
	return code
}

// shared is the server of all tests of a process.
var shared struct {
	sync.Mutex
	begun bool
	node  *node
	err   error
}

// URL returns the URL of a server that other tests use too.
func URL(t testing.TB) string {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if !shared.begun {
		shared.begun = true
		shared.node, shared.err = launch()
	}
	check(t, shared.err)
	return shared.node.url()
}

// Control runs a command of rabbitmqctl on the server of URL, such as set_policy.
func Control(t testing.TB, args ...string) {
	t.Helper()
	URL(t)
	n := shared.node
	ctx, cancel := context.WithTimeout(t.Context(), startPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(n.program), "rabbitmqctl"), args...)
	cmd.Dir, cmd.Env = n.folder.Path, n.environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("rabbitmqctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// errNotInstalled means that there is no RabbitMQ on this machine.
var errNotInstalled = errors.New("RabbitMQ is needed for this test: `apt-get install rabbitmq-server`, or scripts/setup.sh")

// check fails or skips a test if there is no server.
func check(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, errNotInstalled) && os.Getenv("CI") != "true":
		t.Skip(err)
	default:
		t.Fatalf("start RabbitMQ: %v", err)
	}
}

// Server is a server for one test. Its methods fail the test instead of returning errors; they are for one goroutine,
// except URL.
type Server struct {
	t    testing.TB
	node *node
}

// Own starts a server, which ends with the test.
func Own(t testing.TB) *Server {
	t.Helper()
	n, err := launch()
	check(t, err)
	t.Cleanup(func() {
		if err := n.remove(); err != nil {
			t.Errorf("remove RabbitMQ: %v", err)
		}
	})
	return &Server{t, n}
}

// URL returns the URL of the server. It stays the same for the life of the Server.
func (s *Server) URL() string { return s.node.url() }

// Stop ends the server like an operator would.
func (s *Server) Stop() { s.stop(syscall.SIGTERM) }

func (s *Server) stop(sig syscall.Signal) {
	s.t.Helper()
	if s.node.server == nil {
		s.t.Fatal("RabbitMQ does not run")
	}
	p := s.node.server
	s.node.server = nil
	if err := p.Stop(sig); err != nil {
		s.t.Fatalf("%v RabbitMQ: %v", sig, err)
	}
}

// Start starts a server that was stopped, on its port and with its messages.
func (s *Server) Start() {
	s.t.Helper()
	if s.node.server != nil {
		s.t.Fatal("RabbitMQ runs already")
	}
	var err error
	for range launches { // another process may have the port for a moment
		if err = s.node.start(); err == nil {
			return
		}
	}
	s.t.Fatalf("start RabbitMQ: %v", err)
}

// prefix is the prefix of the servers' folders.
const prefix = "rollcall-testrabbitmq-"

// startPatience limits a start, which takes ten seconds of a processor.
const startPatience = 3 * time.Minute

// node is a server and its port mapper.
type node struct {
	program              string
	folder               *testproc.Folder
	port, dist, epmdPort int
	epmd                 *testproc.Process
	server               *testproc.Process // nil while stopped
}

func (n *node) url() string {
	return "amqp://guest:guest@" + net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)) + "/"
}

// launches is how often a server is started with other ports. It needs some seconds until it listens, and another process may
// have taken a port by then.
const launches = 5

func launch() (n *node, err error) {
	for range launches {
		if n, err = tryLaunch(); err == nil || errors.Is(err, errNotInstalled) {
			return n, err
		}
	}
	return nil, err
}

func tryLaunch() (n *node, err error) {
	n = &node{}
	if n.program, err = program(); err != nil {
		return nil, err
	}
	if n.folder, err = testproc.MakeFolder(prefix); err != nil {
		return nil, err
	}
	for _, port := range []*int{&n.port, &n.dist, &n.epmdPort} {
		if *port, err = testproc.FreePort(); err != nil {
			return nil, errors.Join(err, n.remove())
		}
	}
	// Erlang would start a port mapper that outlives the tests, and that other nodes of this machine would share.
	mapper := exec.Command("epmd", "-address", "127.0.0.1", "-port", strconv.Itoa(n.epmdPort), "-debug")
	if n.epmd, err = testproc.Start(mapper, func(string) bool { return true }); err == nil {
		err = n.start()
	}
	if err != nil {
		return nil, errors.Join(err, n.remove())
	}
	return n, nil
}

// start starts the server and returns when it accepts connections.
func (n *node) start() error {
	// The shell's line is the ready line of package proc, which waits for a shorter time.
	cmd := exec.Command("sh", "-c", `echo starting; exec "$0"`, n.program)
	cmd.Dir = n.folder.Path
	cmd.Env = n.environment()
	p, err := testproc.Start(cmd, func(line string) bool { return line == "starting" })
	if err != nil {
		return err
	}
	deadline := time.Now().Add(startPatience)
	for {
		conn, err := amqp.Dial(n.url())
		if err == nil {
			n.server = p
			return conn.Close()
		}
		if ended := p.Running(); ended != nil {
			return ended
		}
		if time.Now().After(deadline) {
			p.Kill()
			return fmt.Errorf("it was not ready in %v: %w", startPatience, err)
		}
		testproc.Pause(context.Background())
	}
}

func (n *node) environment() []string {
	own := map[string]string{
		// Without it the script stays the parent of the server, and would survive or outlive it.
		"RUNNING_UNDER_SYSTEMD": "true",
		"HOME":                  n.folder.Path, // of the cookie
		// RabbitMQ makes Erlang start a port mapper each minute, which would outlive ours.
		"ERL_FLAGS":                     "-start_epmd false",
		"ERL_EPMD_PORT":                 strconv.Itoa(n.epmdPort),
		"ERL_EPMD_ADDRESS":              "127.0.0.1",
		"RABBITMQ_NODENAME":             fmt.Sprintf("rollcall-%d@localhost", n.port),
		"RABBITMQ_NODE_IP_ADDRESS":      "127.0.0.1",
		"RABBITMQ_NODE_PORT":            strconv.Itoa(n.port),
		"RABBITMQ_DIST_PORT":            strconv.Itoa(n.dist),
		"RABBITMQ_MNESIA_BASE":          filepath.Join(n.folder.Path, "data"),
		"RABBITMQ_LOG_BASE":             filepath.Join(n.folder.Path, "log"),
		"RABBITMQ_LOGS":                 "-",
		"RABBITMQ_ENABLED_PLUGINS_FILE": filepath.Join(n.folder.Path, "plugins"),
		"RABBITMQ_CONF_ENV_FILE":        filepath.Join(n.folder.Path, "none"),
		"RABBITMQ_CONFIG_FILE":          filepath.Join(n.folder.Path, "none"),
		"RABBITMQ_ADVANCED_CONFIG_FILE": filepath.Join(n.folder.Path, "none"),
		"RABBITMQ_PID_FILE":             filepath.Join(n.folder.Path, "pid"),
		// The distribution of Erlang listens on the loopback interface only. A small test machine needs no reserve.
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} -rabbit disk_free_limit 1000000",
	}
	var all []string
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		if _, set := own[name]; !set && !strings.HasPrefix(name, "RABBITMQ_") && name != "NOTIFY_SOCKET" {
			all = append(all, pair)
		}
	}
	for name, value := range own {
		all = append(all, name+"="+value)
	}
	return all
}

// remove ends the server and deletes its files.
func (n *node) remove() error {
	if n.server != nil {
		n.server.Kill()
	}
	if n.epmd != nil {
		n.epmd.Kill()
	}
	return n.folder.Remove()
}

// program returns the path of the script that starts a server. The command in PATH changes the user and its environment,
// so the one behind it is used.
func program() (string, error) {
	candidates, _ := filepath.Glob("/usr/lib/rabbitmq/bin/rabbitmq-server") // only a malformed pattern is an error
	for _, pattern := range []string{"/usr/local/sbin/rabbitmq-server", "/opt/homebrew/sbin/rabbitmq-server"} {
		more, _ := filepath.Glob(pattern)
		candidates = append(candidates, more...)
	}
	if len(candidates) == 0 {
		return "", errNotInstalled
	}
	if _, err := exec.LookPath("epmd"); err != nil {
		return "", errNotInstalled
	}
	return candidates[0], nil
}
