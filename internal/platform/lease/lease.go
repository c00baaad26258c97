package lease

import (
	"cmp"
	"context"
	"time"
)

// Config configures a Lease. Fields without a default are required.
type Config struct {
	Row Row
	// Holder is this process's name. It must differ from every other process's, and differ after a restart.
	Holder string
	// Term is the duration of the lease. Default 5 s.
	Term time.Duration
	// Interval is the interval at which processes without the lease call Claim. Default 1 s.
	Interval time.Duration
}

// standBackTerms is for how many terms a process that stood back lets other processes go first.
const standBackTerms = 3

// standBackIntervals is for how many intervals the lease must be free before a process that stood back takes it. The other
// processes have tried to take it by then. A single process therefore resumes within that time.
const standBackIntervals = 3

// stopLimit is how long each statement may take after the process was told to stop.
const stopLimit = time.Second

// Lease is this process's hold of a row. One goroutine at a time may use it.
type Lease struct {
	cfg Config

	held      bool
	epoch     int64
	failing   bool      // the last round failed, so the lease is not renewed
	succeeded time.Time // when a round last succeeded since the election; zero: none did
	standBack time.Time // until then other processes go first
	trial     bool      // it was elected while it stands back
}

// New returns a Lease that is not held.
func New(cfg Config) *Lease {
	cfg.Term = cmp.Or(cfg.Term, 5*time.Second)
	cfg.Interval = cmp.Or(cfg.Interval, time.Second)
	return &Lease{cfg: cfg}
}

// Held reports whether this process had the lease at the last Claim, and neither released nor dropped it since.
func (l *Lease) Held() bool { return l.held }

// Epoch returns the epoch of this process's last election.
func (l *Lease) Epoch() int64 { return l.epoch }

// Trial reports whether this process was elected while it stands back, and has had no successful round since. Such elections
// may come every few seconds.
func (l *Lease) Trial() bool { return l.trial }

// Succeeded returns when a round last succeeded since the election; the zero time if none did.
func (l *Lease) Succeeded() time.Time { return l.succeeded }

// Claim takes the lease if it is free, and reports whether this process was elected by this call. It renews a lease that is
// held, unless the last round failed. After an error the lease is not held; the next Claim that succeeds begins another epoch.
//
// Claim waits for its statement up to a second after stopped ended. The server could otherwise execute it after the release, and
// the lease of a stopped process would last for a term.
func (l *Lease) Claim(stopped context.Context) (elected bool, err error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(stopped))
	defer cancel()
	defer context.AfterFunc(stopped, func() { time.AfterFunc(stopLimit, cancel) })()
	if l.held {
		if !l.failing {
			l.held, err = l.cfg.Row.Renew(ctx, l.cfg.Holder, l.epoch, l.cfg.Term)
		}
		return false, err
	}
	var free time.Duration
	trial := time.Now().Before(l.standBack)
	if trial {
		free = standBackIntervals * l.cfg.Interval
	}
	epoch, elected, err := l.cfg.Row.Elect(ctx, l.cfg.Holder, l.cfg.Term, free)
	if elected {
		l.held, l.epoch, l.trial = true, epoch, trial
		l.failing, l.succeeded = false, time.Time{}
	}
	return elected, err
}

// Record records the outcome of a round, and reports whether a round has succeeded within a term. If none has, the process
// should stand back. A process that was just elected has one round for that.
func (l *Lease) Record(err error) (inTime bool) {
	if l.failing = err != nil; !l.failing {
		l.succeeded, l.standBack, l.trial = time.Now(), time.Time{}, false
	}
	return time.Since(l.succeeded) < l.cfg.Term
}

// StandBack releases the lease and lets other processes go first for three terms, or until this process succeeds again.
// Meanwhile this process takes the lease only if it was free for three intervals.
func (l *Lease) StandBack(ctx context.Context) error {
	l.standBack = time.Now().Add(standBackTerms * l.cfg.Term)
	return l.Release(ctx)
}

// Release ends the lease, so that another process can be elected at once. It takes a second at most, also if ctx has ended. If
// it fails, the lease expires by itself.
func (l *Lease) Release(ctx context.Context) error {
	l.Drop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	return l.cfg.Row.Release(ctx, l.cfg.Holder)
}

// Drop ends this process's hold without releasing the row: it could not begin its work. The next Claim elects it again.
func (l *Lease) Drop() { l.held, l.failing, l.succeeded = false, false, time.Time{} }
