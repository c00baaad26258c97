package pgserver

import "syscall"

// childAttributes keep the terminal's Ctrl-C from the server, and have the kernel end it with its parent.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
