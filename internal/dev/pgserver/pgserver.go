package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	superuser = "rollcall"
	pidFile   = "postmaster.pid"
	logLimit  = 8 << 20 // bytes after which a start begins a new log

	startLimit = time.Minute            // recovery after a crash may take its time
	stopLimit  = 30 * time.Second       // then it is killed
	pollEvery  = 10 * time.Millisecond  // of what gives no signal
	lingering  = 10 * time.Second       // a server whose parent was killed a moment ago may still be ending
	dialLimit  = 500 * time.Millisecond // one try to connect to a server that starts
)

// Config says how to run a server.
type Config struct {
	// Dir is the folder for its files, see the package. It is created, and belongs to this server alone.
	Dir string
	// Port on 127.0.0.1. Required: a server's URL outlives its restarts.
	Port int
	// Database in URL, created where it is missing. Default "rollcall". Lower-case letters, digits and underscores.
	Database string
	// Settings go before those of this package, such as "fsync": "off".
	Settings map[string]string
	// Bin is the folder of PostgreSQL's programs. Default: where PATH and the usual packages have them; of several
	// versions, the one that wrote the data, else the newest.
	Bin string
}

func (c *Config) validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("a folder is missing"))
	}
	if c.Port < 1 || c.Port > 65535 {
		errs = append(errs, fmt.Errorf("port %d: from 1 to 65535", c.Port))
	}
	if strings.Trim(c.Database, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" || len(c.Database) > 63 {
		errs = append(errs, fmt.Errorf("database %q: up to 63 lower-case letters, digits and underscores", c.Database))
	}
	return errors.Join(errs...)
}

// Server is a PostgreSQL. Its methods may be called from several goroutines.
type Server struct {
	cfg      Config
	who      account
	programs installation
	password string

	// mu is held while the server starts or ends.
	mu   sync.Mutex
	proc *process // the last run
}

// Start makes the folder's contents where they are missing, starts the server, and returns when it answers. ctx bounds
// the start, not the server's life. Errors: ErrNotInstalled, ErrPortTaken, ErrRunning, *VersionError, *FolderError.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Database == "" {
		cfg.Database = superuser
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("postgres server: %w", err)
	}
	s := &Server{cfg: cfg}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := s.prepare(ctx); err != nil {
		return nil, fmt.Errorf("postgres server: %w", err)
	}
	if err := s.Restart(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Port that the server listens on, at 127.0.0.1.
func (s *Server) Port() int { return s.cfg.Port }

// PID of the postmaster, or 0 while the server does not run.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || !s.proc.running() {
		return 0
	}
	return s.proc.cmd.Process.Pid
}

// Log is the path of the server's log.
func (s *Server) Log() string { return filepath.Join(s.cfg.Dir, "postgres.log") }

// URL of the database, with the superuser's password: a secret.
func (s *Server) URL() string { return s.DatabaseURL(s.cfg.Database) }

// DatabaseURL is URL for another database of the server.
func (s *Server) DatabaseURL(name string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, s.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.cfg.Port)), Path: "/" + name, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Program is the path of one of PostgreSQL's programs, such as pg_dump, of the server's version.
func (s *Server) Program(name string) string { return s.programs.program(name) }

// Done is closed when the present run of the server has ended, for whatever reason.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.done
}

// Stop ends the server in order: open transactions are rolled back, its data is written out. It does nothing when the
// server does not run. A process that has not ended when ctx does, or within 30 s, is killed, which is an error but loses nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// SIGINT is PostgreSQL's fast shutdown; SIGTERM would wait for the clients to go.
	if err := s.proc.signal(syscall.SIGINT, false); err != nil {
		return nil //nolint:nilerr // it has ended
	}
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	select {
	case <-s.proc.done:
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("postgres server: stop: %w", context.Cause(ctx)), s.kill())
	}
}

// Kill ends the server and its backends at once, as a crash of the machine would, but for what the kernel has yet to
// write. It does nothing when the server does not run.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kill()
}

func (s *Server) kill() error {
	err := s.proc.signal(syscall.SIGKILL, true)
	if errors.Is(err, ErrStopped) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("postgres server: kill: %w", err)
	}
	<-s.proc.done
	return nil
}

// Pause freezes the server and its backends: connections are accepted by the kernel, and nobody answers.
func (s *Server) Pause() error { return s.signalAll(syscall.SIGSTOP) }

// Resume ends a Pause. The server executes the requests that arrived meanwhile.
func (s *Server) Resume() error { return s.signalAll(syscall.SIGCONT) }

func (s *Server) signalAll(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.proc.signal(sig, true); err != nil {
		return fmt.Errorf("postgres server: %v: %w", sig, err)
	}
	return nil
}

// Restart starts a server that was stopped or killed, on its port and with its data, and returns when it answers.
// One that runs is left alone.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil && s.proc.running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		err := s.launch(ctx)
		if err == nil {
			return nil
		}
		// Backends of a server that was killed may take a moment to notice.
		if !errors.Is(err, errRemains) || pause(ctx) != nil {
			return fmt.Errorf("postgres server: %w", err)
		}
	}
}

func (s *Server) data() string { return filepath.Join(s.cfg.Dir, "data") }

// prepare brings the folder to where a server can start in it.
func (s *Server) prepare(ctx context.Context) (err error) {
	if s.cfg.Dir, err = filepath.Abs(s.cfg.Dir); err != nil {
		return err
	}
	if s.who, err = runner(); err != nil {
		return err
	}
	version, err := os.ReadFile(filepath.Join(s.data(), "PG_VERSION"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	written := strings.TrimSpace(string(version))
	major, _ := strconv.Atoi(written) // 0, any, where there is none or one such as 9.6
	if s.programs, err = choose(ctx, s.cfg.Bin, major); err != nil {
		return err
	}
	if installed := strconv.Itoa(s.programs.major); written != "" && written != installed {
		return &VersionError{Dir: s.cfg.Dir, Data: written, Installed: installed}
	}
	if err := prepare(ctx, s.who, s.programs, s.cfg.Dir); err != nil {
		return err
	}
	if written != "" {
		password, err := os.ReadFile(s.passwordFile())
		if err != nil {
			return fmt.Errorf("the password of the data in %s: %w; remove the folder to start again", s.cfg.Dir, err)
		}
		s.password = strings.TrimSpace(string(password))
		return nil
	}
	return s.create(ctx)
}

func (s *Server) passwordFile() string { return filepath.Join(s.cfg.Dir, "password") }

// create makes the data folder. Interrupted anywhere, it begins again at the next start.
func (s *Server) create(ctx context.Context) error {
	s.password = rand.Text()
	fresh := s.data() + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.Remove(s.passwordFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(s.passwordFile(), []byte(s.password+"\n"), 0o600); err != nil {
		return err
	}
	if err := s.who.own(s.passwordFile()); err != nil {
		return err
	}
	// The locale C orders text by its bytes, on every system alike.
	cmd := exec.CommandContext(ctx, s.programs.program("initdb"), "--pgdata", fresh, "--username", superuser,
		"--pwfile", s.passwordFile(), "--auth", "scram-sha-256", "--locale", "C", "--encoding", "UTF8")
	cmd.Dir = s.cfg.Dir
	cmd.Env = environment()
	cmd.SysProcAttr = s.who.dress(childAttributes())
	// Linux kills a child when the thread that started it ends. Unlocked, the thread may run another goroutine meanwhile, and end with
	// that.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return os.Rename(fresh, s.data())
}

// environment is this process's, without what would lead PostgreSQL's programs elsewhere, or have them speak another
// language than the one that is looked for in their log.
func environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PG") || strings.HasPrefix(v, "LC_") || strings.HasPrefix(v, "LANG")
	})
	return append(env, "LC_ALL=C")
}

// errRemains says that something of a server that ended is still there.
var errRemains = errors.New("an earlier run has not ended yet")

// launch starts a process and waits until it answers.
func (s *Server) launch(ctx context.Context) error {
	if err := s.clear(ctx); err != nil {
		return err
	}
	if info, err := os.Stat(s.Log()); err == nil && info.Size() > logLimit {
		if err := os.Rename(s.Log(), s.Log()+".old"); err != nil {
			return err
		}
	}
	settings := map[string]string{
		"max_connections": "200", "shared_buffers": "128MB", "jit": "off", "timezone": "UTC", "log_timezone": "UTC",
		"log_checkpoints": "off",
	}
	maps.Copy(settings, s.cfg.Settings)
	// These make it the server that the package promises.
	settings["listen_addresses"], settings["port"] = "127.0.0.1", strconv.Itoa(s.cfg.Port)
	settings["unix_socket_directories"], settings["logging_collector"] = "", "off"
	args := []string{"-D", s.data()}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	cmd := exec.Command(s.programs.program("postgres"), args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = s.cfg.Dir, environment(), s.who.dress(childAttributes())
	proc, err := start(cmd, s.Log())
	if err != nil {
		return err
	}
	s.proc = proc
	if err := s.await(ctx); err != nil {
		return errors.Join(err, s.kill())
	}
	return nil
}

// clear sees to a postmaster.pid that an earlier run left. PostgreSQL does so too, unless its pid is by now another
// process of the same user, as happens in containers.
func (s *Server) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lingering)
	defer cancel()
	for {
		pid, err := holder(s.data())
		if err != nil {
			return err
		}
		if pid == 0 {
			break
		}
		if pause(ctx) != nil {
			return fmt.Errorf("%w: process %d in %s; stop it, or choose another folder", ErrRunning, pid, s.cfg.Dir)
		}
	}
	if err := os.Remove(filepath.Join(s.data(), pidFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// await returns when the server answers, and its database is there.
func (s *Server) await(ctx context.Context) error {
	for {
		err := s.ask(ctx)
		if err == nil {
			return s.createDatabase(ctx)
		}
		select {
		case <-s.proc.done:
			return s.ended()
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w: %w", context.Cause(ctx), err)
		case <-time.After(pollEvery):
		}
	}
}

// ended explains why the server did not start.
func (s *Server) ended() error {
	said := s.proc.said()
	switch {
	case strings.Contains(said, "pre-existing shared memory block"):
		return errRemains
	case strings.Contains(said, "could not bind") && strings.Contains(said, "in use"):
		return fmt.Errorf("%w: %d; choose another", ErrPortTaken, s.cfg.Port)
	case strings.Contains(said, pidFile):
		return fmt.Errorf("%w: %s: %s", ErrRunning, s.cfg.Dir, said)
	}
	return fmt.Errorf("it ended, and said in %s:\n%s", s.Log(), said)
}

// ask finds out whether the server takes connections.
func (s *Server) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DatabaseURL("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// createDatabase creates the database where it is missing.
func (s *Server) createDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.DatabaseURL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var exists bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", s.cfg.Database).Scan(&exists)
	if err != nil || exists {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{s.cfg.Database}.Sanitize())
	return err
}

// pause waits a moment, or tells why it is too late for that.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(pollEvery):
		return nil
	}
}
