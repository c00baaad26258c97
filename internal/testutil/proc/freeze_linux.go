package proc

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Freeze stops a child of this process and returns when it has stopped. The signal alone is not enough: until one of
// the threads is scheduled and handles it, the others keep running.
func Freeze(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		switch err {
		case unix.EINTR:
		case unix.ECHILD: // killed meanwhile
			return os.ErrProcessDone
		default:
			return os.NewSyscallError("waitid", err)
		}
	}
}
