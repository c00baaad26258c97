package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/dev/pgserver"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

const (
	patience = 2 * time.Minute  // limits operations that take a healthy server a second at most
	closing  = 10 * time.Second // for a pool, which waits for the users of its connections
)

// Main wraps the tests of a package, so that the shared server and its files are removed:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(testpostgres.Main(m)) }
//	func TestMain(m *testing.M) { os.Exit(testpostgres.Main(m).Run()) }
func Main(m interface{ Run() int }) interface{ Run() int } { return tests{m} }

type tests struct{ m interface{ Run() int } }

// Run implements the interface that goleak calls.
func (t tests) Run() int {
	code := t.m.Run()
	if err := common.end(); err != nil {
		fmt.Fprintln(os.Stderr, "shared PostgreSQL of the tests:", err)
		code = max(code, 1)
	}
	return code
}

// DB is a database for one test.
type DB struct{ url string }

// Option is an option of New.
type Option func(*options)

type options struct{ migrations []postgres.Migrations }

// Migrated migrates the database.
func Migrated(m postgres.Migrations) Option {
	return func(o *options) { o.migrations = append(o.migrations, m) }
}

// New returns a new database, which is dropped with the test.
func New(t testing.TB, opts ...Option) *DB {
	t.Helper()
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	url, err := common.database(o)
	if err != nil {
		t.Fatalf("a database for the test: %v", err)
	}
	t.Cleanup(func() {
		if err := common.drop(url); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
	})
	return &DB{url: url}
}

// URL returns the URL of the database, with a password.
func (d *DB) URL() string { return d.url }

// Pool returns a pool of at most 8 connections, which is closed with the test.
func (d *DB) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return pool(t, d.url)
}

func pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := postgres.Open(ctx, postgres.Config{URL: url, ApplicationName: t.Name(), MaxConns: 8, ConnectTimeout: patience})
	if err != nil {
		t.Fatalf("open a pool: %v", err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			p.Close()
		}()
		select {
		case <-closed:
		case <-time.After(closing):
			t.Errorf("%d connections of the pool were never released", p.Stat().AcquiredConns())
		}
	})
	return p
}

// shared is the server of all tests of a process.
type shared struct {
	mu     sync.Mutex
	begun  bool
	server *pgserver.Server
	err    error
	folder *testproc.Folder

	names     atomic.Uint64
	templates sync.Map // by the hash of their migrations: func() (name string, err error)
}

var common shared

// prefix is the prefix of the servers' folders.
const prefix = "rollcall-testpostgres-"

// bin is the folder of PostgreSQL's programs, or "" for the usual places.
var bin string

func (s *shared) start() (*pgserver.Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun {
		s.begun = true
		s.err = s.launch()
	}
	return s.server, s.err
}

func (s *shared) launch() (err error) {
	if s.folder, err = testproc.MakeFolder(prefix); err != nil {
		return err
	}
	s.server, err = startPrefilled(s.folder, map[string]string{"fsync": "off", "full_page_writes": "off"})
	return err
}

// start starts a server on its own port.
func start(folder *testproc.Folder, settings map[string]string) (*pgserver.Server, error) {
	// A killed server leaves its shared memory behind, which is removed with the folder then.
	settings["dynamic_shared_memory_type"] = "mmap"
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// Another process may take a port between its choice and the server's bind.
	for attempt := 1; ; attempt++ {
		port, err := testproc.FreePort()
		if err != nil {
			return nil, err
		}
		server, err := pgserver.Start(ctx, pgserver.Config{Dir: serverFolder(folder), Port: port, Settings: settings, Bin: bin})
		if err == nil || attempt == 20 || !errors.Is(err, pgserver.ErrPortTaken) {
			return server, err
		}
	}
}

func (s *shared) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	if s.server != nil {
		errs = append(errs, s.server.Kill()) // its data is not needed any more
	}
	if s.folder != nil {
		errs = append(errs, s.folder.Remove())
	}
	return errors.Join(errs...)
}

// database creates a database, and returns its URL.
func (s *shared) database(o options) (string, error) {
	server, err := s.start()
	if err != nil {
		return "", err
	}
	template := "template0"
	if len(o.migrations) > 0 {
		key, err := hash(o.migrations)
		if err != nil {
			return "", err
		}
		made, _ := s.templates.LoadOrStore(key, sync.OnceValues(func() (string, error) { return s.migrated(server, o.migrations) }))
		if template, err = made.(func() (string, error))(); err != nil {
			return "", err
		}
	}
	name := fmt.Sprintf("test_%d", s.names.Add(1))
	// Without fsync the checkpoints of file_copy cost less than writing the template into the log.
	if err := administer(server, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s STRATEGY file_copy", name, template)); err != nil {
		return "", err
	}
	return server.DatabaseURL(name), nil
}

// migrated creates a template.
func (s *shared) migrated(server *pgserver.Server, all []postgres.Migrations) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	name := fmt.Sprintf("template_%d", s.names.Add(1))
	if err := administer(server, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
		return "", err
	}
	for _, m := range all {
		if err := postgres.Migrate(ctx, server.DatabaseURL(name), m); err != nil {
			return "", err
		}
	}
	return name, nil
}

func (s *shared) drop(url string) error {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	// FORCE is needed because a failed test may have left connections. One of these, to a paused proxy, would stay
	// open.
	return administer(s.server, "DROP DATABASE "+c.Database+" WITH (FORCE)")
}

func administer(server *pgserver.Server, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, server.DatabaseURL("postgres"))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(ctx))
}

// hash returns a hash of migrations, because file systems cannot be compared.
func hash(all []postgres.Migrations) (string, error) {
	h := sha256.New()
	for _, m := range all {
		fmt.Fprintf(h, "%q\n", m.Table)
		err := fs.WalkDir(m.FS, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			content, err := fs.ReadFile(m.FS, path)
			fmt.Fprintf(h, "%q %q\n", path, content)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Server is a PostgreSQL server for one test. Its methods fail the test instead of returning errors; they are for one
// goroutine, except URL.
type Server struct {
	t         testing.TB
	server    *pgserver.Server
	databases atomic.Uint64 // number of named databases
}

// Own starts a durable server, which ends with the test. Its files may be in memory: what it wrote survives its end, not the
// machine's. settings override the defaults.
func Own(t testing.TB, settings ...map[string]string) *Server {
	t.Helper()
	all := map[string]string{"shared_buffers": "16MB"}
	for _, more := range settings {
		maps.Copy(all, more)
	}
	folder, err := testproc.MakeFolder(prefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := folder.Remove(); err != nil {
			t.Errorf("remove the server's folder: %v", err)
		}
	})
	server, err := startPrefilled(folder, all)
	if err != nil {
		t.Fatalf("start PostgreSQL: %v", err)
	}
	s := &Server{t: t, server: server}
	t.Cleanup(s.Kill)
	return s
}

// URL returns the URL of an empty database of the server, with a password. It stays the same for the life of the
// Server.
func (s *Server) URL() string { return s.server.URL() }

// Log returns the path of the server's log.
func (s *Server) Log() string { return s.server.Log() }

// Pool returns a pool of at most 8 connections, which is closed with the test.
func (s *Server) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return pool(t, s.URL())
}

// Dump writes a consistent snapshot of the server's database to a file, with pg_dump.
func (s *Server) Dump(file string) {
	s.t.Helper()
	s.run("pg_dump", "--format=custom", "--file="+file, "--dbname="+s.URL())
}

// Restored creates another database of the server, with the contents of a dump. It stays until the server ends.
func (s *Server) Restored(file string) *DB {
	s.t.Helper()
	name := fmt.Sprintf("restored_%d", s.databases.Add(1))
	s.must(administer(s.server, "CREATE DATABASE "+name+" TEMPLATE template0"), "create a database")
	url := s.server.DatabaseURL(name)
	s.run("pg_restore", "--exit-on-error", "--dbname="+url, file)
	return &DB{url: url}
}

// Replace makes a database of [Server.Restored] replace the server's own, at the same URL. It ends all connections to
// both, and returns the database that was replaced.
func (s *Server) Replace(with *DB) *DB {
	s.t.Helper()
	var names [2]string
	for i, url := range []string{s.URL(), with.url} {
		c, err := pgx.ParseConfig(url)
		s.must(err, "replace the database")
		names[i] = c.Database
	}
	replaced := fmt.Sprintf("replaced_%d", s.databases.Add(1))
	for _, name := range names {
		s.must(administer(s.server, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false"), "replace the database")
		s.must(administer(s.server, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '"+name+"'"), "end connections")
	}
	for _, statement := range []string{
		"ALTER DATABASE " + names[0] + " RENAME TO " + replaced, "ALTER DATABASE " + names[1] + " RENAME TO " + names[0],
		"ALTER DATABASE " + names[0] + " ALLOW_CONNECTIONS true", "ALTER DATABASE " + replaced + " ALLOW_CONNECTIONS true",
	} {
		s.must(administer(s.server, statement), "replace the database")
	}
	return &DB{url: s.server.DatabaseURL(replaced)}
}

// run runs one of PostgreSQL's programs.
func (s *Server) run(program string, args ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.server.Program(program), args...)
	cmd.Env = []string{"LC_ALL=C"}
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v: %s", program, err, out)
	}
}

// Stop ends the server like an operator would.
func (s *Server) Stop() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.must(s.server.Stop(ctx), "stop")
}

// Kill ends the server and its backends at once.
func (s *Server) Kill() {
	s.t.Helper()
	s.must(s.server.Kill(), "kill")
}

// Restart starts a server that was stopped or killed, on its port and with its data.
func (s *Server) Restart() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.must(s.server.Restart(ctx), "restart")
}

// Pause freezes the server and its backends: the kernel accepts connections, and no request is answered.
func (s *Server) Pause() {
	s.t.Helper()
	s.must(s.server.Pause(), "pause")
}

// Resume ends a Pause. The server executes the requests that arrived meanwhile.
func (s *Server) Resume() {
	s.t.Helper()
	s.must(s.server.Resume(), "resume")
}

func (s *Server) must(err error, doing string) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s PostgreSQL: %v", doing, err)
	}
}
