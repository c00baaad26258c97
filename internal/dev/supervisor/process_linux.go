package supervisor

import "syscall"

// childAttributes keep the terminal's Ctrl-C from the children, because the supervisor stops them in order. They make
// the kernel kill the children when the supervisor ends.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
