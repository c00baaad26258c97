package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rollcall-dev/rollcall/internal/dev/pgserver"
	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
)

// runFolder is the environment variable with a folder that all tests of one run share. `make test` sets it.
const runFolder = "TESTPOSTGRES_RUN"

// Folder returns [pgserver.Folder] for a server that the test's program starts. It is removed with the test.
func Folder(t testing.TB, preferred string) string {
	t.Helper()
	dir, err := pgserver.Folder(t.Context(), preferred, bin)
	if err != nil {
		t.Fatalf("a folder for PostgreSQL: %v", err)
	}
	t.Cleanup(func() { // for root it is outside of the test's folder
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove PostgreSQL's folder: %v", err)
		}
	})
	if err := prefill(dir); err != nil {
		t.Fatalf("prepare PostgreSQL: %v", err)
	}
	return dir
}

// prefill gives a server's folder, before its first start, the files that initdb would write. They are a copy of those in the run's
// folder, where the first caller puts them. A copy takes 0.13 to 0.22 s of a processor, initdb 0.66, and a run of all tests starts
// 80 servers. Without a run's folder, and if a server has used dir, prefill does nothing.
func prefill(dir string) error {
	run := os.Getenv(runFolder)
	if _, err := os.Stat(run); err != nil { // there is none, or it was removed
		return nil
	}
	if used, err := os.ReadDir(dir); len(used) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	template := filepath.Join(run, "postgres")
	if _, err := os.Stat(template); errors.Is(err, fs.ErrNotExist) {
		if err := makeTemplate(template); err != nil {
			return err
		}
	}
	return copyFolder(template, dir)
}

// makeTemplate makes the folder of a server that has stopped. If several processes make it at once, that of the first one stays.
func makeTemplate(template string) (err error) {
	folder, err := testproc.MakeFolder(prefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, folder.Remove()) }()
	server, err := start(folder, map[string]string{"fsync": "off"})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := server.Stop(ctx); err != nil {
		return errors.Join(err, server.Kill())
	}
	if err := os.Remove(server.Log()); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(template), "fresh-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(fresh)) }() // nothing is there after the rename
	if err := copyFolder(serverFolder(folder), fresh); err != nil {
		return err
	}
	if err := os.Rename(fresh, template); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// copyFolder copies the contents of a folder, with their owners and rights, into another one, which may exist.
func copyFolder(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func serverFolder(folder *testproc.Folder) string { return filepath.Join(folder.Path, "server") }

// startPrefilled starts a new server on its own port, without initdb if another one of the run has used it.
func startPrefilled(folder *testproc.Folder, settings map[string]string) (*pgserver.Server, error) {
	if err := prefill(serverFolder(folder)); err != nil {
		return nil, err
	}
	return start(folder, settings)
}
