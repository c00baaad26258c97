//go:build !linux

package testproc

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }
