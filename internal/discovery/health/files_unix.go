//go:build unix

package health

import (
	"math"
	"syscall"
)

// maxOpenFiles returns how many files the process may have open. The runtime has raised the soft limit already.
func maxOpenFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt32
	}
	return int(min(limit.Cur, math.MaxInt32))
}
