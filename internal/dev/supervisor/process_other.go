//go:build !linux

package supervisor

import "syscall"

// childAttributes keep the terminal's Ctrl-C from the children, because the supervisor stops them in order.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
