package raftstore_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
)

// replaceEnv makes the test binary replace the state in the named folder.
const replaceEnv = "RAFTSTORE_TEST_REPLACE"

// killEnv is the step after which that process kills itself.
const killEnv = "RAFTSTORE_TEST_KILL_AFTER"

// replaceAndDie is the main function of that process.
func replaceAndDie(dir, step string) int {
	raftstore.SetReplaceStep(func(s string) {
		if s == step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	if _, err := raftstore.Replace(replaceConfig(dir), mark("new")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func replaceConfig(dir string) raftstore.Config {
	return raftstore.Config{Dir: dir, Fatal: func(err error) { panic(err) }}
}

// mark stores a name, by which a test recognizes the state.
func mark(name string) func(*raftstore.Stores) error {
	return func(s *raftstore.Stores) error { return raftstore.Set(s.Stable(), raftstore.KeyCluster, name) }
}

// replace replaces the state in a folder.
func replace(dir string, fill func(*raftstore.Stores) error) (string, error) {
	return raftstore.Replace(replaceConfig(dir), fill)
}

// marked returns the name in a folder's state.
func marked(t *testing.T, dir string) string {
	s, err := raftstore.Open(replaceConfig(dir))
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	name, err := raftstore.Get(s.Stable(), raftstore.KeyCluster)
	require.NoError(t, err)
	return name
}

// A process that is killed after any step must leave the former state, the new one, or a folder that no node starts
// with. A repeat must finish.
func TestReplace_KilledAfterEachStep(t *testing.T) {
	t.Parallel()
	steps := []struct {
		name              string
		begins, continues string // the state after the kill in a folder without, and with a former state; "" if Open refuses it
	}{
		{"locked", "none", "old"},
		{"stores created", "", "old"},
		{"staged", "", "old"},
		{"former state moved aside", "", ""},
		{"replaced", "new", "new"},
	}
	for _, step := range steps {
		for _, former := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/former=%t", step.name, former), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				want := step.begins
				if former {
					want = step.continues
					_, err := replace(dir, mark("old"))
					require.NoError(t, err)
				}
				self, err := os.Executable()
				require.NoError(t, err)
				cmd := exec.CommandContext(t.Context(), self)
				cmd.Env = append(os.Environ(), replaceEnv+"="+dir, killEnv+"="+step.name)
				err = cmd.Run()
				var exit *exec.ExitError
				require.ErrorAs(t, err, &exit)
				require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal())

				switch want {
				case "":
					_, err := raftstore.Open(replaceConfig(dir))
					require.ErrorContains(t, err, "a restore was interrupted here; repeat it: rollcall cluster restore")
				case "none":
					require.NoDirExists(t, filepath.Join(dir, "raft"))
				default:
					require.Equal(t, want, marked(t, dir))
					require.NoDirExists(t, filepath.Join(dir, "raft-staged"), "Open removes it")
				}
				_, err = replace(dir, mark("newer"))
				require.NoError(t, err)
				require.Equal(t, "newer", marked(t, dir))
			})
		}
	}
}

// A repeat that is killed as well must not leave a folder with which a node starts empty.
func TestReplace_KilledTwice_IsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := replace(dir, mark("old"))
	require.NoError(t, err)
	for _, step := range []string{"former state moved aside", "locked"} {
		self, err := os.Executable()
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), replaceEnv+"="+dir, killEnv+"="+step)
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Run(), &exit)
		_, err = raftstore.Open(replaceConfig(dir))
		require.ErrorContains(t, err, "a restore was interrupted here; repeat it: rollcall cluster restore")
	}
	_, err = replace(dir, mark("new"))
	require.NoError(t, err)
	require.Equal(t, "new", marked(t, dir))
}

// A state that cannot be written must leave the former one.
func TestReplace_FillFails_KeepsTheFormerState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	former, err := replace(dir, mark("old"))
	require.NoError(t, err)
	require.Empty(t, former)
	broken := errors.New("broken")
	_, err = replace(dir, func(*raftstore.Stores) error { return broken })
	require.ErrorIs(t, err, broken)
	require.Equal(t, "old", marked(t, dir))

	former, err = replace(dir, mark("new"))
	require.NoError(t, err)
	require.Equal(t, "new", marked(t, dir))
	require.NoError(t, os.Rename(former, filepath.Join(t.TempDir(), "raft")), "it is a whole state")
}

// Neither a node nor another replacement may work in the folder meanwhile.
func TestReplace_ExcludesOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := replace(dir, mark("old"))
	require.NoError(t, err)
	_, err = replace(dir, func(s *raftstore.Stores) error {
		_, err := replace(dir, mark("other"))
		require.ErrorIs(t, err, raftstore.ErrLocked)
		_, err = raftstore.Open(replaceConfig(dir))
		require.ErrorIs(t, err, raftstore.ErrLocked)
		return mark("new")(s)
	})
	require.NoError(t, err)
	s, err := raftstore.Open(replaceConfig(dir))
	require.NoError(t, err)
	_, err = replace(dir, mark("other"))
	require.ErrorIs(t, err, raftstore.ErrLocked)
	require.NoError(t, s.Close())
	require.Equal(t, "new", marked(t, dir))
}
