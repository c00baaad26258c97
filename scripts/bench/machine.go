package main

import (
	"errors"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// processor returns the processor time of some process so far, of user code and kernel together.
type processor func() (time.Duration, error)

// ownProcessor is the processor of this program.
func ownProcessor() (time.Duration, error) { return rusage(syscall.RUSAGE_SELF) }

// processorOf returns the processor of a process, of its children, and of those that have ended.
func processorOf(pid int) processor {
	return func() (used time.Duration, err error) {
		all, err := procfs.AllProcs()
		for _, p := range all {
			stat, err := p.Stat()
			if err != nil {
				continue // it ended meanwhile
			}
			if p.PID == pid || stat.PPID == pid {
				used += seconds(stat.CPUTime())
			}
			if p.PID == pid {
				used += time.Duration(stat.CUTime+stat.CSTime) * 10 * time.Millisecond // the kernel reports hundredths of a second
			}
		}
		return used, err
	}
}

// processorTime returns the processor time that each of several processes uses while do runs.
func (t *trial) processorTime(of map[string]processor, do func()) map[string]time.Duration {
	used := make(map[string]time.Duration)
	read := func(sign time.Duration) {
		for name, p := range of {
			now, err := p()
			t.check(err)
			used[name] += sign * now
		}
	}
	read(-1)
	do()
	read(1)
	return used
}

// resident returns the resident memory of a process in bytes.
func (t *trial) resident(pid int) float64 {
	p, err := procfs.NewProc(pid)
	t.check(err)
	stat, err := p.Stat()
	t.check(err)
	return float64(stat.ResidentMemory())
}

// machineUse is the processor time so far: of all processes on this machine, and of this program with its ended
// children.
type machineUse struct {
	at        time.Time
	all, ours time.Duration
}

func readMachineUse() (u machineUse, err error) {
	fs, err := procfs.NewFS(procfs.DefaultMountPoint)
	if err != nil {
		return u, err
	}
	stat, err := fs.Stat()
	own, err2 := rusage(syscall.RUSAGE_SELF)
	ended, err3 := rusage(syscall.RUSAGE_CHILDREN)
	all := stat.CPUTotal
	u = machineUse{time.Now(), seconds(all.User + all.Nice + all.System + all.IRQ + all.SoftIRQ + all.Steal), own + ended}
	return u, errors.Join(err, err2, err3)
}

// others returns how many cores were busy with other processes since an earlier reading. Such load distorts the
// figures.
func (u machineUse) others(since machineUse) float64 {
	return max(0, ((u.all-since.all)-(u.ours-since.ours)).Seconds()) / u.at.Sub(since.at).Seconds()
}

func rusage(of int) (time.Duration, error) {
	var r syscall.Rusage
	err := syscall.Getrusage(of, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
