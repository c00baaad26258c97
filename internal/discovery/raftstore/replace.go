package raftstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const (
	// stateFolder is the folder of the Raft state, in the data folder.
	stateFolder = "raft"
	// stagedFolder is the folder in which Replace prepares a state.
	stagedFolder = "raft-staged"
	// replacedFolder is the prefix of the folder to which Replace moves the former state; the time is appended.
	replacedFolder = "raft-replaced-"
)

// replaceStep is called after each step of Replace. Tests end the process there.
var replaceStep = func(string) {}

// Replace replaces the Raft state in a data folder that no process uses. fill writes the new state to empty stores.
// Replace returns the folder that holds the former state; "" if there was none. It returns an error that wraps
// ErrLocked if a process uses the folder.
//
// If Replace is interrupted, the folder has the former state, or the new one, or neither. In the last case Open
// refuses the folder. A repeated Replace finishes in every case.
func Replace(cfg Config, fill func(*Stores) error) (former string, err error) {
	if err := cfg.withDefaults(); err != nil {
		return "", fmt.Errorf("raft store: %w", err)
	}
	state, staged := filepath.Join(cfg.Dir, stateFolder), filepath.Join(cfg.Dir, stagedFolder)
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return "", newError(cfg.Dir, makeFolder, err)
	}
	unlock, err := lockPaths(cfg.Dir, filepath.Join(state, stateFile))
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := os.RemoveAll(staged); err != nil {
		return "", fmt.Errorf("remove what an interrupted replacement left: %w", err)
	}
	replaceStep("locked")
	if err := fillStaged(cfg, staged, fill); err != nil {
		return "", err
	}
	// Otherwise a power failure might keep the rename of the former state alone.
	if err := syncDir(cfg.Dir); err != nil {
		return "", fmt.Errorf("store the staged folder: %w", err)
	}
	replaceStep("staged")
	if _, err := os.Stat(state); err == nil {
		former = filepath.Join(cfg.Dir, replacedFolder+time.Now().UTC().Format("20060102T150405.000000"))
		if err := os.Rename(state, former); err != nil {
			return "", fmt.Errorf("move the former state aside: %w", err)
		}
	}
	replaceStep("former state moved aside")
	if err := errors.Join(os.Rename(staged, state), syncDir(cfg.Dir)); err != nil {
		return "", fmt.Errorf("move the new state to its place: %w", err)
	}
	replaceStep("replaced")
	return former, nil
}

// fillStaged creates stores in the staged folder. All of it is on disk when it returns.
func fillStaged(cfg Config, staged string, fill func(*Stores) error) error {
	s, err := openStores(cfg, staged)
	if err != nil {
		return err
	}
	replaceStep("stores created")
	return errors.Join(fill(s), s.Close(), syncDir(staged))
}

// lockPaths keeps other processes out: those that replace or open the state by the lock of the data folder, a running
// node by the lock of its file. It skips paths that cannot be opened; their next use reports why.
func lockPaths(paths ...string) (unlock func(), err error) {
	var locked []*os.File
	unlock = func() {
		for _, f := range locked {
			closeLocked(f)
		}
	}
	for _, path := range paths {
		f, err := os.OpenFile(path, os.O_RDONLY, 0)
		if err != nil {
			continue
		}
		locked = append(locked, f)
		if err := lock(f, 0); err != nil {
			unlock()
			return nil, newError(path, "lock", err)
		}
	}
	return unlock, nil
}

// checkReplaced refuses a data folder without a state in which a replacement was interrupted, and removes the leftovers
// of one that had not changed anything. The caller has locked the data folder.
func checkReplaced(cfg Config) error {
	staged := filepath.Join(cfg.Dir, stagedFolder)
	_, err := os.Stat(staged)
	isStaged := err == nil
	former, err := filepath.Glob(filepath.Join(cfg.Dir, replacedFolder+"*"))
	if err != nil || !isStaged && len(former) == 0 {
		return err
	}
	if _, err := os.Stat(filepath.Join(cfg.Dir, stateFolder, stateFile)); err != nil {
		e := newError(cfg.Dir, "open", errors.New("a restore was interrupted here"))
		e.Remedy = "repeat it: rollcall cluster restore; or empty the whole folder: the node then joins its peers without a state"
		return e
	}
	if !isStaged {
		return nil
	}
	if err := os.RemoveAll(staged); err != nil {
		return newError(staged, "remove what an interrupted restore left", err)
	}
	cfg.Logger.Warn("a restore was interrupted here before it changed anything; its files are removed", "folder", staged)
	return nil
}
