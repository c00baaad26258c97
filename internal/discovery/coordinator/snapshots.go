package coordinator

import (
	"bytes"
	"context"

	"google.golang.org/grpc"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// chunkSize is the maximum size of a message of TakeSnapshot.
const chunkSize = 256 << 10

func (n cluster) TakeSnapshot(_ *rollcallv1.TakeSnapshotRequest, stream grpc.ServerStreamingServer[rollcallv1.TakeSnapshotResponse]) error {
	s := n.machine.State()
	if s.Cluster() == "" {
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
