//go:build !linux

package torture

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }
