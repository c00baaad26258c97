package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/internal/discovery/raftstore"
)

// Raft restores a directory in two steps: the leader alone takes it, on disk and in memory, under an index that no
// entry of the log fills; then it commits an entry above that index, which a follower can hold only after it has
// installed the snapshot. Between the two the others may elect a leader that knows of no restore and fills the index
// with something else. Raft does not notice: who has the snapshot would go on from the restored directory with
// everything that came after, and differ from the others for good. So nothing is read from such a directory before the
// restore is committed, and a leader that cannot know whether it was begins again; so does a follower once it learns that
// it was not (undone.go).

const (
	// restoreMark is the file that says that the Raft state holds, or may hold, a restore that the cluster knows nothing of.
	restoreMark = "restoring"
	// undoneFolder is where such a state is moved, with the time appended.
	undoneFolder = "raft-undone-"
)

// restoreState is the hold that a restore has on a leadership.
type restoreState struct {
	mu sync.Mutex
	// done is closed when the outcome is known; nil before a restore. No other epoch opens meanwhile.
	done chan struct{}
	// err is set, before that, when the restore may come undone.
	err error
	// open says that the directory here is one that may come undone.
	open atomic.Bool
}

// unsettledError ends a process whose directory may come undone.
type unsettledError struct{ cause error }

func (e *unsettledError) Error() string {
	return fmt.Sprintf("a snapshot was restored here and is not known to be committed: %v; ending, to take over what the others have", e.cause)
}

func (e *unsettledError) Unwrap() error { return e.cause }

// settled waits for the restore under way and fails with an *unsettledError if it may come undone.
func (p *restoreState) settled() error {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if done == nil {
		return nil
	}
	<-done
	return p.err
}

// begin makes settled wait until the function it returns is called.
func (p *restoreState) begin() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done := make(chan struct{})
	p.done = done
	return func() { close(done) }
}

// uncommittedRestore reports whether the directory may be one that comes undone. Asked after the directory was read, false
// means that what was read may be shown.
func (n *Node) uncommittedRestore() bool {
	l := n.leader.Load()
	return l != nil && l.restoreState.open.Load()
}

// replace ends the epoch and restores a snapshot. Before it returns no other epoch opens. It fails with an
// *unknownError when the restore may come undone, and otherwise when nothing was restored.
func (n *Node) replace(ctx context.Context, l *leader, r *raft.Raft, meta *raft.SnapshotMeta, content io.Reader) error {
	defer l.restoreState.begin()()
	again := &ReestablishError{AtLeast: l.Epoch + 1}
	l.reestablish(again)
	if context.Cause(l.ctx) != error(again) { //nolint:errorlint // this very request, not one like it
		return errNotEstablished
	}
	// The leader's work reads the directory until it has returned, and its readers act on that.
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	select {
	case <-l.leadDone:
	case <-ctx.Done():
		return status.Errorf(codes.Aborted, "nothing was restored: the leader's work has not ended: %v", context.Cause(ctx))
	}
	if err := n.markRestore(r); err != nil {
		return status.Errorf(codes.Internal, "nothing was restored: %v", err)
	}
	l.restoreState.open.Store(true)
	// Nothing commits until all of it is here and on a quorum: a large write, that takes its time.
	pending := n.watchdog.begin(int(meta.Size))
	snapshot := &eofReader{Reader: content}
	err := r.Restore(meta, snapshot, restoreTimeout)
	pending.end(err)
	if err != nil && snapshot.read {
		l.restoreState.err = &unsettledError{err}
		return &unknownError{fmt.Errorf("restore: %w", err)}
	}
	l.restoreState.open.Store(false)
	if err := n.unmarkRestore(); err != nil {
		n.log.Warn("mark of a restore not removed; the next start will begin with an empty disk", "err", err)
	}
	if err != nil {
		return status.Errorf(codes.Aborted, "nothing was restored: %v", err)
	}
	return nil
}

// eofReader notes when all has been read: only then can Raft have stored the snapshot.
type eofReader struct {
	io.Reader
	read bool // to the end
}

func (w *eofReader) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	w.read = w.read || errors.Is(err, io.EOF)
	return n, err
}

// markRestore notes, to stay, that the Raft state is not to be trusted from now on. Of two voters neither is elected
// without the other, and the one without the restore not at all; so there, and alone, it cannot come undone.
func (n *Node) markRestore(r *raft.Raft) error {
	voters := 0
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.Suffrage == raft.Voter {
			voters++
		}
	}
	if n.cfg.DataDir == "" || voters <= 2 {
		return nil
	}
	return writeMarker(n.cfg.DataDir, restoreMark)
}

func (n *Node) unmarkRestore() error {
	if n.cfg.DataDir == "" {
		return nil
	}
	return removeMarker(n.cfg.DataDir, restoreMark)
}

// openStores opens the stores in a data folder. A state that may hold an undone restore is moved aside: the node goes
// on as one that lost its disk. A founder notes that its cluster exists; any other knows that, and not whether it is to
// vote, which the leader tells it.
func openStores(cfg raftstore.Config, founder bool) (*raftstore.Stores, error) {
	s, err := raftstore.Open(cfg) // also makes sure that the folder is ours alone
	if err != nil {
		return nil, err
	}
	if _, err = os.Stat(filepath.Join(cfg.Dir, restoreMark)); errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	err = nil // a mark that cannot be looked at counts
	aside := filepath.Join(cfg.Dir, undoneFolder+time.Now().UTC().Format("20060102T150405.000000"))
	if founder {
		err = writeMarker(cfg.Dir, rejoinMark)
	}
	if err == nil {
		err = errors.Join(os.Rename(filepath.Join(cfg.Dir, "raft"), aside), syncDir(cfg.Dir))
	}
	if err = errors.Join(err, s.Close()); err == nil {
		err = removeMarker(cfg.Dir, restoreMark)
	}
	if err != nil {
		return nil, fmt.Errorf("move the state of an interrupted restore aside: %w", err)
	}
	if cfg.Logger != nil {
		cfg.Logger.Warn("a restore was interrupted here, or came undone; its state is moved aside, and this node takes over what the others have", "aside", aside)
	}
	return raftstore.Open(cfg)
}

// writeMarker makes an empty file, to stay.
func writeMarker(dir, name string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close(), syncDir(dir))
	}
	return err
}

// removeMarker removes what note made, if it is there.
func removeMarker(dir, name string) error {
	err := os.Remove(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, syncDir(dir))
}
