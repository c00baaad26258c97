//go:build !linux

package pgserver

import "syscall"

// childAttributes keep the terminal's Ctrl-C from the server.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
