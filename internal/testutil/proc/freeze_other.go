//go:build !linux

package proc

import (
	"os"
	"syscall"
)

// Freeze stops a child of this process.
func Freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
