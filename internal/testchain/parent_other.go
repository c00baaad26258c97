//go:build !linux

package testchain

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }
