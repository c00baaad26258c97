package foreman

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

// watchFolder follows the folder until ctx ends. It closes scanned after the first complete read.
func (f *Foreman) watchFolder(ctx context.Context, scanned chan<- struct{}) {
	if f.cfg.Folder == "" {
		close(scanned)
		return
	}
	events, failures, watch, stop := f.notifications()
	defer stop()
	patience := time.Now().Add(20 * settleTime) // limit for a file that is written continuously at the start
	for first := true; ; {
		watch() // repeated, because the system treats a replaced folder as another one
		again := f.rescan()
		if first && (!again || time.Now().After(patience)) {
			first = false
			close(scanned)
		}
		pause := time.NewTimer(f.cfg.Rescan)
		if again {
			pause.Reset(settleTime)
		}
		select {
		case <-events:
			// Wait until a series of events ends, but not for an endless series.
			for end := time.Now().Add(10 * settleTime); time.Now().Before(end) && moreWithin(ctx, events, settleTime); {
			}
		case err := <-failures:
			f.log.Warn("changes of definition files may be noticed late", "err", err)
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
		pause.Stop()
	}
}

func moreWithin(ctx context.Context, events <-chan fsnotify.Event, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-events:
		return true
	case <-t.C:
		return false
	case <-ctx.Done():
		return false
	}
}

// notifications returns the system's notifications for the folder. Without them, only the rescans remain.
func (f *Foreman) notifications() (events <-chan fsnotify.Event, failures <-chan error, watch, stop func()) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		f.log.Warn("folder is not watched, only read from time to time", "err", err, "interval", f.cfg.Rescan)
		return nil, nil, func() {}, func() {}
	}
	var last string
	watch = func() {
		text := ""
		if err := w.Add(f.cfg.Folder); err != nil {
			text = err.Error()
		}
		if text != last && text != "" {
			f.log.Warn("folder is not watched, only read from time to time", "err", text, "interval", f.cfg.Rescan)
		}
		last = text
	}
	return w.Events, w.Errors, watch, func() { _ = w.Close() }
}

// rescan applies the folder's current state. It reports whether it must run again after settleTime.
func (f *Foreman) rescan() (again bool) {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	before, advertised, notUsed, unsaved := f.folder, f.advertised, f.skipped, f.stateErr != nil
	errBefore := f.folderErr
	f.mu.Unlock()

	after, again, err := scan(f.cfg.Folder, before, time.Now(), f.cfg.MissingFilesGrace)
	after.files = f.admit(before.files, after.files, advertised)
	if err != nil && text(err) != text(errBefore) {
		f.log.Error("folder of definitions cannot be taken as it is; what was read before stays", "err", err)
	} else if err == nil && errBefore != nil {
		f.log.Info("folder of definitions is taken as it is again", "files", len(after.files))
	}
	f.reportFiles(before.files, after.files)
	changed := !maps.EqualFunc(before.files, after.files, sameVersion)
	if changed || unsaved {
		if err := f.saveState(after.files, advertised, notUsed); err != nil {
			f.log.Error("definitions cannot be remembered; they are used all the same", "err", err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.folder, f.folderErr = after, err
	if changed {
		f.reconcile()
	}
	f.countLocked()
	return again
}

func (f *Foreman) reportFiles(before, after map[string]file) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		was, is := before[name], after[name]
		switch {
		case is.err != nil && !is.since.Equal(was.since):
			f.log.Error("definition file is broken; its last good version stays", "file", name, "err", is.err, "services", len(is.services))
		case is.err == nil && was.err != nil:
			f.log.Info("definition file is good again", "file", name, "services", len(is.services))
		}
	}
	for name := range before {
		if _, there := after[name]; !there {
			f.log.Info("definition file is gone", "file", name)
		}
	}
}
