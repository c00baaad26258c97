package testredis

import "syscall"

// dieWithParent has the kernel end the server when the test binary is killed and no cleanup runs.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
