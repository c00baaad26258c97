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
	logLimit  = 8 << 20 // size in bytes from which a start begins a new log

	stopLimit = 30 * time.Second       // after that it is killed
	pollEvery = 10 * time.Millisecond  // for conditions without a signal
	lingering = 10 * time.Second       // a server whose parent was killed a moment ago may still be ending
	dialLimit = 500 * time.Millisecond // one attempt to connect to a starting server
)

// StartLimit is how long a start may take. Recovery after a crash takes long on a busy machine.
const StartLimit = 2 * time.Minute

// Config configures a server.
type Config struct {
	// Dir is the folder for its files, see the package comment. It is created, and used by this server alone.
	Dir string
	// Port on 127.0.0.1. Required, because a server's URL stays valid after restarts.
	Port int
	// Database is the one in URL, created if missing. Default "rollcall". Lower-case letters, digits and underscores.
	Database string
	// Settings override this package's defaults, such as "fsync": "off".
	Settings map[string]string
	// Bin is the folder of PostgreSQL's programs. Default: the one in PATH or of the usual packages. Of several
	// versions, the one that wrote the data is used, else the newest.
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

// Server is a PostgreSQL server. Its methods are safe for concurrent use.
type Server struct {
	cfg      Config
	who      account
	programs installation
	password string

	// mu is held while the server starts or ends.
	mu   sync.Mutex
	proc *process // the last run
}

// Start creates missing contents of the folder, starts the server, and returns when it answers. ctx limits the start,
// not the server's lifetime. Errors: ErrNotInstalled, ErrPortTaken, ErrRunning, *VersionError, *FolderError.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Database == "" {
		cfg.Database = superuser
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("postgres server: %w", err)
	}
	s := &Server{cfg: cfg}
	ctx, cancel := context.WithTimeout(ctx, StartLimit)
	defer cancel()
	if err := s.prepare(ctx); err != nil {
		return nil, fmt.Errorf("postgres server: %w", err)
	}
	if err := s.Restart(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Port returns the port at 127.0.0.1 that the server listens on.
func (s *Server) Port() int { return s.cfg.Port }

// PID returns the pid of the postmaster, or 0 while the server does not run.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || !s.proc.running() {
		return 0
	}
	return s.proc.cmd.Process.Pid
}

// Log returns the path of the server's log.
func (s *Server) Log() string { return filepath.Join(s.cfg.Dir, "postgres.log") }

// URL returns the URL of the database, with the superuser's password: a secret.
func (s *Server) URL() string { return s.DatabaseURL(s.cfg.Database) }

// DatabaseURL returns the URL of another database of the server.
func (s *Server) DatabaseURL(name string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, s.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.cfg.Port)), Path: "/" + name, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Program returns the path of one of PostgreSQL's programs, such as pg_dump, of the server's version.
func (s *Server) Program(name string) string { return s.programs.program(name) }

// Done returns a channel that is closed when the current run of the server has ended for any reason.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.done
}

// Stop ends the server in order: it rolls back open transactions and writes its data. It does nothing if the server
// does not run. A process that has not ended when ctx does, or within 30 s, is killed, which is an error but loses no
// data.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// SIGINT is PostgreSQL's fast shutdown; SIGTERM would wait for the clients to disconnect.
	if err := s.proc.signal(syscall.SIGINT, false); err != nil {
		return nil // it has ended
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

// Kill ends the server and its backends at once, like a crash of the machine, except that the kernel still writes its
// buffers. It does nothing if the server does not run.
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

// Pause freezes the server and its backends: the kernel accepts connections, and no request is answered.
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

// Restart starts a server that was stopped or killed, on its port and with its data, and returns when it answers. If it
// runs, Restart does nothing.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil && s.proc.running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, StartLimit)
	defer cancel()
	for {
		err := s.launch(ctx)
		if err == nil {
			return nil
		}
		// Backends of a killed server may take a moment to end.
		if !errors.Is(err, errRemains) || pause(ctx) != nil {
			return fmt.Errorf("postgres server: %w", err)
		}
	}
}

func (s *Server) data() string { return filepath.Join(s.cfg.Dir, "data") }

// prepare makes the folder ready for a start of the server.
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
	major, _ := strconv.Atoi(written) // 0 means any version: there is no data, or a version such as 9.6
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

// create makes the data folder. If it is interrupted at any point, the next start repeats it.
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
	// The locale C orders text by its bytes, identically on every system.
	cmd := exec.CommandContext(ctx, s.programs.program("initdb"), "--pgdata", fresh, "--username", superuser,
		"--pwfile", s.passwordFile(), "--auth", "scram-sha-256", "--locale", "C", "--encoding", "UTF8")
	cmd.Dir = s.cfg.Dir
	cmd.Env = environment()
	cmd.SysProcAttr = s.who.dress(childAttributes())
	// Linux kills a child when the thread that started it ends. An unlocked thread may run another goroutine meanwhile,
	// and end with it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return os.Rename(fresh, s.data())
}

// environment returns this process's environment, without variables that change the target of PostgreSQL's programs, or
// the language of the log, which its callers search for texts.
func environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PG") || strings.HasPrefix(v, "LC_") || strings.HasPrefix(v, "LANG")
	})
	return append(env, "LC_ALL=C")
}

// errRemains means that a part of an earlier server still exists.
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
	// These settings implement the package's guarantees.
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

// clear handles a postmaster.pid that an earlier run left. PostgreSQL does so too, unless another process of the same
// user has that pid by now, as happens in containers.
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

// await returns when the server answers, and its database exists.
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

// ended returns why the server did not start.
func (s *Server) ended() error {
	output := s.proc.output()
	switch {
	case strings.Contains(output, "pre-existing shared memory block"):
		return errRemains
	case strings.Contains(output, "could not bind") && strings.Contains(output, "in use"):
		return fmt.Errorf("%w: %d; choose another", ErrPortTaken, s.cfg.Port)
	case strings.Contains(output, pidFile):
		return fmt.Errorf("%w: %s: %s", ErrRunning, s.cfg.Dir, output)
	}
	return fmt.Errorf("it ended; its log %s ends with:\n%s", s.Log(), output)
}

// ask returns nil if the server accepts connections. Another one may have the port, and the same password if its files are a copy.
func (s *Server) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DatabaseURL("postgres"))
	if err != nil {
		return err
	}
	var data string
	err = conn.QueryRow(ctx, "SHOW data_directory").Scan(&data)
	if err == nil && data != s.data() {
		err = fmt.Errorf("the server of %s has port %d", data, s.cfg.Port)
	}
	return errors.Join(err, conn.Close(ctx))
}

// createDatabase creates the database if it is missing.
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

// pause waits a moment, or returns the cause if ctx has ended.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(pollEvery):
		return nil
	}
}
