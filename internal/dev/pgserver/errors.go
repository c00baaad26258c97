package pgserver

import (
	"errors"
	"fmt"
)

var (
	// ErrNotInstalled means that there is no PostgreSQL on this machine, or only too old a version.
	ErrNotInstalled = errors.New("PostgreSQL is not installed")
	// ErrPortTaken means that another process listens on the port.
	ErrPortTaken = errors.New("the port is taken")
	// ErrRunning means that another server uses the folder.
	ErrRunning = errors.New("a server runs in the folder already")
	// ErrStopped means that the server does not run.
	ErrStopped = errors.New("the server does not run")
)

// VersionError means that another major version of PostgreSQL wrote the data in a folder.
type VersionError struct {
	Dir             string
	Data, Installed string // major versions
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("the data in %s is of PostgreSQL %s and %s is installed: install %[2]s as well, or remove the folder to start again",
		e.Dir, e.Data, e.Installed)
}

// FolderError means that the server's user cannot use a folder.
type FolderError struct {
	Dir  string
	User string
	// Blocked is the parent folder that the user cannot enter, if it is known.
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
