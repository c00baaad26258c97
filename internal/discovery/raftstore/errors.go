package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	bolterrors "go.etcd.io/bbolt/errors"
)

var (
	// ErrLocked means that another process has the stores open.
	ErrLocked = errors.New("locked by another process")

	errUnsound = errors.New("file is not sound")
)

// Error is why a node's Raft state cannot be stored or read. Its text is one line with the remedy for an operator.
type Error struct {
	Path   string
	Op     string // the attempted operation
	Err    error
	Remedy string
}

func (e *Error) Error() string {
	cause := strings.Join(strings.Fields(e.Err.Error()), " ")
	return fmt.Sprintf("%s: %s: %s; %s", e.Path, e.Op, cause, e.Remedy)
}

func (e *Error) Unwrap() error { return e.Err }

const startOver = "move the data folder away and start again: the node rejoins with an empty disk"

// makeFolder is the operation before all others.
const makeFolder = "make the folder"

func newError(path, op string, err error) *Error {
	e := &Error{Path: path, Op: op, Err: err, Remedy: startOver}
	switch {
	case errors.Is(err, ErrLocked), errors.Is(err, bolterrors.ErrTimeout):
		e.Err = ErrLocked
		e.Remedy = "stop that process, or give this node a data folder of its own"
	case is(err, syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG):
		e.Remedy = "make room on its disk and start again"
	case is(err, syscall.EROFS, syscall.EACCES, syscall.EPERM), errors.Is(err, fs.ErrPermission):
		e.Remedy = "make it writable for this user and start again"
	case is(err, syscall.EIO):
		e.Remedy = "check the disk, then " + startOver
	case op == makeFolder: // nothing was stored there yet
		e.Remedy = "name a data folder that this user can make: --data-dir, ROLLCALL_DATA_DIR"
	}
	return e
}

// is also compares the text, because bbolt and Raft pass some errors on as text only.
func is(err error, numbers ...syscall.Errno) bool {
	for _, number := range numbers {
		if errors.Is(err, number) || strings.Contains(err.Error(), number.Error()) {
			return true
		}
	}
	return false
}
