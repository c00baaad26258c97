package foreman

import (
	"io/fs"
	"syscall"
	"time"
)

// changeTime returns when the file or its attributes last changed; zero if unknown. No program can set it.
func changeTime(info fs.FileInfo) time.Time {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return time.Time{}
	}
	return time.Unix(stat.Ctim.Unix())
}
