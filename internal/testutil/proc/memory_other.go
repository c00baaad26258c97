//go:build !linux

package proc

func memoryFolders() []string { return nil }
