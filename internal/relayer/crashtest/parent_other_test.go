//go:build !linux

package crashtest

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }
