package crashtest

import "syscall"

// dieWithParent has the kernel end the process when the test binary is killed and no cleanup runs.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
