package supervisor

import "syscall"

// childAttributes keep the terminal's Ctrl-C from the children, which the supervisor stops in order, and end
// them with it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
