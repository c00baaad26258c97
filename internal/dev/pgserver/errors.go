package pgserver

import (
	"errors"
	"fmt"
)

var (
	// ErrNotInstalled says that there is no PostgreSQL on this machine, or only one too old.
	ErrNotInstalled = errors.New("PostgreSQL is not installed")
	// ErrPortTaken says that somebody else listens on the port.
	ErrPortTaken = errors.New("the port is taken")
	// ErrRunning says that another server works in the folder.
	ErrRunning = errors.New("a server runs in the folder already")
	// ErrStopped says that the server does not run.
	ErrStopped = errors.New("the server does not run")
)

// VersionError is a folder whose data another major version of PostgreSQL wrote.
type VersionError struct {
	Dir             string
	Data, Installed string // major versions
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("the data in %s is of PostgreSQL %s and %s is installed: install %[2]s as well, or remove the folder to start again",
		e.Dir, e.Data, e.Installed)
}

// FolderError is a folder that the server's user cannot use.
type FolderError struct {
	Dir  string
	User string
	// Blocked is the parent that keeps the user out, where it is known.
	Blocked string
	Err     error
}

func (e *FolderError) Error() string {
	text := fmt.Sprintf("PostgreSQL runs as the user %s here, who cannot reach %s", e.User, e.Dir)
	if e.Blocked != "" {
		text += fmt.Sprintf(": %s is closed to others; open it with chmod o+x %[1]s, or", e.Blocked)
	} else {
		text += fmt.Sprintf(" (%v):", e.Err)
	}
	return text + " choose a folder below one that everybody may enter, such as /var/tmp"
}

func (e *FolderError) Unwrap() error { return e.Err }
