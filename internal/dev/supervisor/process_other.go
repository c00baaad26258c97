//go:build !linux

package supervisor

import "syscall"

// childAttributes keep the terminal's Ctrl-C from the children, which the supervisor stops in order.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
