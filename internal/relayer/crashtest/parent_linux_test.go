package crashtest

import "syscall"

// dieWithParent makes the kernel kill the process when the test binary is killed and no cleanup runs.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
