//go:build !linux

package testproc

import (
	"os"
	"syscall"
)

// Freeze stops a child of this process.
func Freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
