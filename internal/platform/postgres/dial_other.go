//go:build !linux

package postgres

import "syscall"

// setUserTimeout does nothing here: probes alone notice that the other host has vanished.
func setUserTimeout(string, string, syscall.RawConn) error { return nil }
