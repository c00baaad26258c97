//go:build !linux

package testredis

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }
