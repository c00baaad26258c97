package pgserver

import "syscall"

// childAttributes keep the terminal's Ctrl-C from the server, and make the kernel kill it when its parent ends.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
