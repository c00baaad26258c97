package proc

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Freeze stops a child of this process and returns when it stands still. The signal alone does not say so: until one of
// its threads is scheduled and takes it, the others run on.
func Freeze(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		switch err {
		case unix.EINTR:
		case unix.ECHILD: // it was killed meanwhile
			return os.ErrProcessDone
		default:
			return os.NewSyscallError("waitid", err)
		}
	}
}
