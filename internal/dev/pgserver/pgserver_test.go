package pgserver_test

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/dev/pgserver"
	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

// parentOf, if set, makes the test binary a process that starts a server in that folder and runs until it is killed.
const parentOf = "PGSERVER_TEST_PARENT_OF"

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentOf); dir != "" {
		parent(dir)
	}
	goleak.VerifyTestMain(m)
}

func parent(dir string) {
	port, err := strconv.Atoi(os.Getenv("PGSERVER_TEST_PORT"))
	if err == nil {
		_, err = pgserver.Start(context.Background(), pgserver.Config{Dir: dir, Port: port, Settings: small})
	}
	fmt.Fprintln(os.Stdout, "started:", err)
	select {}
}

var small = map[string]string{"shared_buffers": "16MB"}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := testproc.FreePort()
	require.NoError(t, err)
	return port
}

// begin starts a server in the folder, on a port that no other process took between its choice and its use.
func begin(t *testing.T, dir string) *pgserver.Server {
	t.Helper()
	for {
		s, err := pgserver.Start(t.Context(), pgserver.Config{Dir: dir, Port: freePort(t), Settings: small})
		if err != nil {
			require.ErrorIs(t, err, pgserver.ErrPortTaken)
			continue
		}
		t.Cleanup(func() { require.NoError(t, s.Kill()) })
		return s
	}
}

// folder returns a folder for a server. If root runs the test, the server's user can access it.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	return filepath.Join(dir, "server")
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func write(t *testing.T, s *pgserver.Server, v int) {
	t.Helper()
	conn := connect(t, s.URL())
	_, err := conn.Exec(t.Context(), "CREATE TABLE IF NOT EXISTS t (v int)")
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "INSERT INTO t VALUES ($1)", v)
	require.NoError(t, err)
}

func read(t *testing.T, s *pgserver.Server) (v []int) {
	t.Helper()
	require.NoError(t, connect(t, s.URL()).QueryRow(t.Context(), "SELECT array_agg(v ORDER BY v) FROM t").Scan(&v))
	return v
}

func TestServer_StoppedKilledAndReplaced_KeepsData(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := begin(t, dir)
	write(t, s, 1)
	connect(t, s.URL()) // an open connection does not delay a stop
	require.NoError(t, s.Stop(t.Context()))
	require.Zero(t, s.PID())
	<-s.Done()
	require.NoError(t, s.Stop(t.Context()), "it has ended")
	require.ErrorIs(t, s.Pause(), pgserver.ErrStopped)
	require.NoError(t, s.Restart(t.Context()))
	require.NoError(t, s.Restart(t.Context()), "it runs")
	require.Equal(t, []int{1}, read(t, s))
	write(t, s, 2)
	require.NoError(t, s.Kill())
	require.NoError(t, s.Kill(), "it is dead")
	require.NoError(t, s.Restart(t.Context()))
	write(t, s, 3)
	require.NoError(t, s.Kill())

	again := begin(t, dir)
	require.Equal(t, []int{1, 2, 3}, read(t, again))
	for setting, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "max_connections": "200", "shared_buffers": "16MB",
		"server_encoding": "UTF8", "listen_addresses": "127.0.0.1", "unix_socket_directories": "",
	} {
		var got string
		require.NoError(t, connect(t, again.URL()).QueryRow(t.Context(), "SHOW "+setting).Scan(&got))
		require.Equal(t, want, got, setting)
	}
}

func TestServer_WrongPassword_IsRefused(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := begin(t, dir)
	info, err := os.Stat(filepath.Join(dir, "password"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
	u, err := url.Parse(s.URL())
	require.NoError(t, err)
	password, _ := u.User.Password()
	require.GreaterOrEqual(t, len(password), 20)
	for _, user := range []*url.Userinfo{url.UserPassword("rollcall", "guess"), url.UserPassword("rollcall", "")} {
		u.User = user
		_, err = pgx.Connect(t.Context(), u.String())
		require.ErrorContains(t, err, "28P01")
	}
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, os.Remove(filepath.Join(dir, "password")))
	_, err = pgserver.Start(t.Context(), pgserver.Config{Dir: dir, Port: s.Port()})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "remove the folder")
}

func TestPause_StatementSent_ExecutesLater(t *testing.T) {
	t.Parallel()
	s := begin(t, folder(t))
	write(t, s, 1)
	conn := connect(t, s.URL())
	require.NoError(t, s.Pause())
	answered := make(chan error)
	go func() {
		_, err := conn.Exec(t.Context(), "INSERT INTO t VALUES (2)")
		answered <- err
	}()
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := pgx.Connect(short, s.URL())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	select {
	case err := <-answered:
		t.Fatalf("a frozen server answered: %v", err)
	default:
	}
	require.NoError(t, s.Resume())
	require.NoError(t, <-answered)
	require.Equal(t, []int{1, 2}, read(t, s))
	require.NoError(t, s.Pause())
	require.NoError(t, s.Kill(), "also of a frozen one")
	require.NoError(t, s.Restart(t.Context()))
	require.Equal(t, []int{1, 2}, read(t, s))
}

func TestStop_TakesTooLong_Kills(t *testing.T) {
	t.Parallel()
	s := begin(t, folder(t))
	write(t, s, 1)
	require.NoError(t, s.Pause())
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Stop(short), context.DeadlineExceeded)
	<-s.Done()
	require.NoError(t, s.Restart(t.Context()))
	require.Equal(t, []int{1}, read(t, s))
}

func TestStart_PortTaken_Fails(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	_, err = pgserver.Start(t.Context(), pgserver.Config{Dir: folder(t), Port: port})
	require.ErrorIs(t, err, pgserver.ErrPortTaken)
	require.ErrorContains(t, err, strconv.Itoa(port))
}

// A server with copied files has the password of the other one, whose answer must not count as its own.
func TestStart_PortTakenByACopy_Fails(t *testing.T) {
	t.Parallel()
	dir, copied := folder(t), folder(t)
	s := begin(t, dir)
	require.NoError(t, s.Stop(t.Context()))
	out, err := exec.Command("cp", "-a", dir+"/.", copied).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, s.Restart(t.Context()))
	_, err = pgserver.Start(t.Context(), pgserver.Config{Dir: copied, Port: s.Port()})
	require.ErrorIs(t, err, pgserver.ErrPortTaken)
}

func TestStart_FolderInUse_Fails(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := begin(t, dir)
	limited, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	_, err := pgserver.Start(limited, pgserver.Config{Dir: dir, Port: freePort(t)})
	require.ErrorIs(t, err, pgserver.ErrRunning)
	require.ErrorContains(t, err, strconv.Itoa(s.PID()))
	write(t, s, 1)
}

// After a kill, another process may have the pid in postmaster.pid.
func TestStart_StalePIDFile_Succeeds(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := begin(t, dir)
	write(t, s, 1)
	for name, content := range map[string]string{
		"of a process that is gone": "", "of one that is no server": fmt.Sprintln(os.Getpid()), "of init": "1\n",
	} {
		require.NoError(t, s.Kill())
		pidFile := filepath.Join(dir, "data", "postmaster.pid")
		require.FileExists(t, pidFile, name)
		if content != "" {
			require.NoError(t, os.WriteFile(pidFile, []byte(content), 0o600))
		}
		require.NoError(t, s.Restart(t.Context()), name)
		require.Equal(t, []int{1}, read(t, s), name)
	}
}

func TestStart_DataOfAnotherVersion_Fails(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := begin(t, dir)
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("11\n"), 0o600))
	_, err := pgserver.Start(t.Context(), pgserver.Config{Dir: dir, Port: s.Port()})
	var version *pgserver.VersionError
	require.ErrorAs(t, err, &version)
	require.Equal(t, "11", version.Data)
	require.ErrorContains(t, err, "remove the folder")
}

func TestStart_CreationWasInterrupted_BeginsAgain(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "data.new", "base"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data.new", "PG_VERSION"), []byte("15\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "password"), []byte("half"), 0o600))
	write(t, begin(t, dir), 1)
	require.NoDirExists(t, filepath.Join(dir, "data.new"))
}

func TestStart_NotInstalled_Fails(t *testing.T) {
	t.Parallel()
	for name, program := range map[string]string{
		"nothing there": "", "too old": "echo 'postgres (PostgreSQL) 9.6.24'", "another program": "echo no", "a broken one": "exit 3",
	} {
		bin := t.TempDir()
		if program != "" {
			for _, name := range []string{"postgres", "initdb"} {
				require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+program+"\n"), 0o700))
			}
		}
		_, err := pgserver.Start(t.Context(), pgserver.Config{Dir: folder(t), Port: 1, Bin: bin})
		require.ErrorIs(t, err, pgserver.ErrNotInstalled, name)
		require.ErrorContains(t, err, "apt-get install postgresql")
		require.ErrorContains(t, err, "brew install")
	}
}

func TestStart_ServerEnds_ReportsTheReason(t *testing.T) {
	t.Parallel()
	_, err := pgserver.Start(t.Context(), pgserver.Config{Dir: folder(t), Port: freePort(t), Settings: map[string]string{"no_such": "1"}})
	require.ErrorContains(t, err, `unrecognized configuration parameter "no_such"`)
}

func TestStart_InvalidConfig_ReportsEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := pgserver.Start(t.Context(), pgserver.Config{Port: 70000, Database: "a'b"})
	require.ErrorContains(t, err, "a folder is missing")
	require.ErrorContains(t, err, "port 70000")
	require.ErrorContains(t, err, "database")
}

// If root runs the test, the server runs as another user, which needs access to its folder.
func TestFolder_ParentClosed_ServerStarts(t *testing.T) {
	t.Parallel()
	closed := filepath.Join(filepath.Dir(folder(t)), "closed")
	require.NoError(t, os.Mkdir(closed, 0o700))
	want := filepath.Join(closed, "server")
	dir, err := pgserver.Folder(t.Context(), want, "")
	require.NoError(t, err)
	if os.Geteuid() == 0 {
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
		require.NotEqual(t, want, dir)
		require.NoDirExists(t, want, "an empty folder is left behind")
		again, err := pgserver.Folder(t.Context(), want, "")
		require.NoError(t, err)
		require.Equal(t, dir, again)

		_, err = pgserver.Start(t.Context(), pgserver.Config{Dir: want, Port: freePort(t)})
		var blocked *pgserver.FolderError
		require.ErrorAs(t, err, &blocked)
		require.Equal(t, closed, blocked.Blocked)
		require.ErrorContains(t, err, "chmod o+x "+closed)
	} else {
		require.Equal(t, want, dir)
	}
	write(t, begin(t, dir), 1)

	// A symbolic link is not accepted as the folder.
	link := filepath.Join(filepath.Dir(folder(t)), "link")
	require.NoError(t, os.Symlink(dir, link))
	_, err = pgserver.Start(t.Context(), pgserver.Config{Dir: link, Port: freePort(t)})
	require.ErrorContains(t, err, "is not a folder of")
}
