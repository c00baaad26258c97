package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// machineUse is the processor time so far: of all processes on this machine, and of this program with its ended
// children.
type machineUse struct {
	at        time.Time
	all, ours time.Duration
}

func readMachineUse() (u machineUse, err error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u, err
	}
	first, _, _ := strings.Cut(string(stat), "\n")
	fields := strings.Fields(first)
	if len(fields) < 9 || fields[0] != "cpu" {
		return u, errors.New("/proc/stat: no line of all processors")
	}
	u.at = time.Now()
	// user, nice, system, (idle, iowait,) irq, softirq, steal; in hundredths of a second.
	for _, i := range []int{1, 2, 3, 6, 7, 8} {
		ticks, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return u, fmt.Errorf("/proc/stat: %w", err)
		}
		u.all += time.Duration(ticks) * 10 * time.Millisecond
	}
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var r syscall.Rusage
		if err := syscall.Getrusage(who, &r); err != nil {
			return u, err
		}
		u.ours += time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	return u, nil
}

// others returns how many cores were busy with other processes since an earlier reading. Such load distorts the
// figures.
func (u machineUse) others(since machineUse) float64 {
	return max(0, ((u.all-since.all)-(u.ours-since.ours)).Seconds()) / u.at.Sub(since.at).Seconds()
}
