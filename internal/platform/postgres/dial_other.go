//go:build !linux

package postgres

import "syscall"

// setUserTimeout does nothing here: only probes detect that the other host has disappeared.
func setUserTimeout(string, string, syscall.RawConn) error { return nil }
