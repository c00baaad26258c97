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

// Raft restores a directory in two steps. First the leader alone takes it, on disk and in memory, under an index that
// no log entry has. Then it commits an entry above that index, which a follower can hold only after it has installed
// the snapshot.
//
// Between the two steps the other nodes may elect a leader that does not have the restore, and fill the index with
// another entry. Raft does not detect this. A node with the snapshot would apply all later entries to the restored
// directory, and diverge from the others permanently.
//
// So the restored directory is not read before the restore is committed. A leader that does not know whether it was
// committed discards its state and rejoins. A follower does the same once it receives evidence that it was not
// (fork.go).

const (
	// restoreMark is the file that records that the Raft state holds, or may hold, a restore which the cluster does
	// not have.
	restoreMark = "restoring"
	// undoneFolder is the prefix of the folder that such a state is moved to; the time is appended.
	undoneFolder = "raft-undone-"
)

// restoreState is the state of a restore during a leadership.
type restoreState struct {
	mu sync.Mutex
	// done is closed when the outcome is known; nil before a restore. No other epoch opens before that.
	done chan struct{}
	// err is set before done is closed, if the restore may be undone.
	err error
	// open reports whether this node's directory may be undone.
	open atomic.Bool
}

// unsettledError ends a process whose directory may be undone.
type unsettledError struct{ cause error }

func (e *unsettledError) Error() string {
	return fmt.Sprintf("a snapshot was restored here and is not known to be committed: %v; ending, to take over what the others have", e.cause)
}

func (e *unsettledError) Unwrap() error { return e.cause }

// settled waits for the running restore. It returns an *unsettledError if the restore may be undone.
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

// begin makes settled wait until the returned function is called.
func (p *restoreState) begin() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done := make(chan struct{})
	p.done = done
	return func() { close(done) }
}

// uncommittedRestore reports whether the directory may be undone. If it returns false after a read of the directory,
// the result may be served.
func (n *Node) uncommittedRestore() bool {
	l := n.leader.Load()
	return l != nil && l.restoreState.open.Load()
}

// replace ends the epoch and restores a snapshot. No other epoch opens before it returns. It returns an *unknownError
// if the restore may be undone. Any other error means that nothing was restored.
func (n *Node) replace(ctx context.Context, l *leader, r *raft.Raft, meta *raft.SnapshotMeta, content io.Reader) error {
	defer l.restoreState.begin()()
	again := &ReestablishError{AtLeast: l.Epoch + 1}
	l.reestablish(again)
	if context.Cause(l.ctx) != error(again) { //nolint:errorlint // identity: this request, not an equal one
		return errNotEstablished
	}
	// The leader's work reads the directory until it has returned, and its readers act on the result.
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
	// Nothing commits until the whole snapshot is stored here and on a quorum. It is a large write, so it takes long.
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

// eofReader records whether all content has been read, because Raft can have stored the snapshot only then.
type eofReader struct {
	io.Reader
	read bool // to the end
}

func (w *eofReader) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	w.read = w.read || errors.Is(err, io.EOF)
	return n, err
}

// markRestore records durably that the Raft state is untrusted from now on. With two voters, neither is elected
// without the other, and the one without the restore is never elected. With one or two voters the restore therefore
// cannot be undone.
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

// openStores opens the stores in a data folder. It moves a state that may hold an undone restore aside, and the node
// then continues like one that lost its disk. A founder records that its cluster exists. Any other node already has
// that information, but the leader decides whether it votes.
func openStores(cfg raftstore.Config, founder bool) (*raftstore.Stores, error) {
	s, err := raftstore.Open(cfg) // also ensures that only this process uses the folder
	if err != nil {
		return nil, err
	}
	if _, err = os.Stat(filepath.Join(cfg.Dir, restoreMark)); errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	err = nil // an unreadable mark counts as a mark
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

// writeMarker creates an empty file, durably.
func writeMarker(dir, name string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close(), syncDir(dir))
	}
	return err
}

// removeMarker removes the file of writeMarker, if it exists.
func removeMarker(dir, name string) error {
	err := os.Remove(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, syncDir(dir))
}
