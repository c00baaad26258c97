package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	chunkSize = 256 << 10
	// maxSnapshot is the maximum upload of a restore: ten times a directory of a million services.
	maxSnapshot = 2 << 30
	// chunkLimit is how long an upload may pause.
	chunkLimit     = 30 * time.Second
	restoreTimeout = 2 * time.Minute
	// uploads is the name pattern of the files that restores receive snapshots in.
	uploads = "restore-*"
)

func (n cluster) TakeSnapshot(_ *rollcallv1.TakeSnapshotRequest, stream grpc.ServerStreamingServer[rollcallv1.TakeSnapshotResponse]) error {
	s := n.machine.State()
	if s.Cluster() == "" || n.uncommittedRestore() {
		return toStatus(errNotEstablished)
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer context.AfterFunc(n.stopping, func() { cancel(errStopping) })()
	return toStatus(s.WriteSnapshot(chunkWriter(func(chunk []byte) error {
		// The chunk is copied, because a canceled send may still encode it when the writer reuses its buffer.
		return send(ctx, stream, &rollcallv1.TakeSnapshotResponse{Chunk: bytes.Clone(chunk)})
	})))
}

// chunkWriter sends written data in messages of at most chunkSize.
type chunkWriter func([]byte) error

func (w chunkWriter) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		next := min(done+chunkSize, len(p))
		if err := w(p[done:next]); err != nil {
			return done, err
		}
		done = next
	}
	return len(p), nil
}

// RestoreSnapshot replaces the directory. It receives and verifies the whole snapshot before it changes anything. The
// next epoch is above every earlier one, so that an earlier write never counts as newer. This holds even if this
// leader dies before it opens that epoch, because the restored snapshot has at least the epoch of this leadership.
func (n cluster) RestoreSnapshot(stream grpc.ClientStreamingServer[rollcallv1.RestoreSnapshotRequest, rollcallv1.RestoreSnapshotResponse]) error {
	l, r, err := n.leading()
	if err != nil {
		return toStatus(err)
	}
	if !n.restoring.TryLock() {
		return status.Error(codes.Aborted, "another restore is under way")
	}
	defer n.restoring.Unlock()
	f, err := os.CreateTemp(n.cfg.DataDir, uploads)
	if err != nil {
		return status.Errorf(codes.Internal, "receive snapshot: %v", err)
	}
	defer os.Remove(f.Name()) // the next start removes a leftover
	defer f.Close()           // only read
	upload := &upload{recv: stream.Recv}
	info, err := fsm.CopySnapshot(f, upload, l.Epoch, n.cfg.ID)
	var damaged *fsm.DecodeError
	switch {
	case upload.err != nil:
		return upload.err
	case errors.As(err, &damaged):
		return status.Errorf(codes.InvalidArgument, "%v", err)
	case err != nil:
		return status.Errorf(codes.Internal, "receive snapshot: %v", err)
	}
	if info.Cluster != l.Cluster && !upload.allowForeign {
		return toStatus(&foreignClusterError{expected: info.Cluster, actual: l.Cluster})
	}
	if info.Epoch-l.Epoch > maxEpochJump { // the copy has at least the leader's own epoch
		return status.Errorf(codes.InvalidArgument, "the snapshot is of epoch %d, which no leader after %d can have opened", info.Epoch, l.Epoch)
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return status.Errorf(codes.Internal, "read back snapshot: %v", err)
	}
	// The log continues above both the snapshot's index and its own. Another cluster's index may be higher, and the
	// versions of entries, which derive from it, must grow.
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: info.Index, Size: size}
	if err := n.replace(stream.Context(), l, r, meta, f); err != nil {
		return toStatus(err)
	}
	epoch, err := n.awaitEpoch(stream.Context(), l.Epoch)
	if err != nil {
		return toStatus(&unknownError{err})
	}
	n.log.Warn("snapshot restored", "services", info.Services, "epoch", epoch)
	return stream.SendAndClose(&rollcallv1.RestoreSnapshotResponse{Epoch: epoch, Services: uint64(info.Services)})
}

// upload reads a caller's snapshot, within limits.
type upload struct {
	recv func() (*rollcallv1.RestoreSnapshotRequest, error)

	started, allowForeign bool
	size                  int64
	rest                  []byte
	err                   error // why it ended early, in the form for the caller
}

func (u *upload) Read(p []byte) (int, error) {
	for len(u.rest) == 0 {
		if u.err != nil {
			return 0, u.err
		}
		req, err := receive(u.recv, nil, errRestorePaused)
		if errors.Is(err, io.EOF) {
			return 0, io.EOF
		}
		if err != nil {
			u.err = err
			return 0, err
		}
		if !u.started {
			u.started, u.allowForeign = true, req.AllowForeign
		}
		if u.size += int64(len(req.Chunk)); u.size > maxSnapshot {
			u.err = status.Errorf(codes.ResourceExhausted, "the snapshot is larger than %d bytes", int64(maxSnapshot))
			return 0, u.err
		}
		u.rest = req.Chunk
	}
	done := copy(p, u.rest)
	u.rest = u.rest[done:]
	return done, nil
}

// receive receives a message of a stream, within chunkLimit. After that it returns paused. It returns errNotEstablished if
// ended is closed first. Returning from the handler cancels a blocked recv.
func receive[M any](recv func() (*M, error), ended <-chan struct{}, paused error) (*M, error) {
	type message struct {
		req *M
		err error
	}
	received := make(chan message, 1)
	go func() {
		req, err := recv()
		received <- message{req, err}
	}()
	limit := time.NewTimer(chunkLimit)
	defer limit.Stop()
	select {
	case m := <-received:
		return m.req, m.err
	case <-ended:
		return nil, errNotEstablished
	case <-limit.C:
		return nil, paused
	}
}

// errRestorePaused ends a restore whose caller sends nothing.
var errRestorePaused = status.Errorf(codes.DeadlineExceeded, "nothing more of the snapshot came for %v; nothing was restored", chunkLimit)

// removeUploads removes the files in the data folder that interrupted restores left.
func removeUploads(dir string) error {
	if dir == "" {
		return nil
	}
	left, err := fs.Glob(os.DirFS(dir), uploads)
	for _, name := range left {
		err = errors.Join(err, os.Remove(filepath.Join(dir, name)))
	}
	if err != nil {
		return fmt.Errorf("remove what an earlier restore left: %w", err)
	}
	return nil
}

// awaitEpoch waits until this node has established an epoch above the given one.
func (n *Node) awaitEpoch(ctx context.Context, above uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	for {
		if l := n.currentLeader(); l != nil && l.Epoch > above {
			return l.Epoch, nil
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
}
