package admin

import (
	"context"
	"io"

	"google.golang.org/grpc"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Snapshot requests a snapshot of the directory from the leader, for "cluster restore". The reader ends with ctx or the Admin.
// Its duration depends on its size, so the timeout is for finding the leader only.
func (a *Admin) Snapshot(ctx context.Context) (io.Reader, gateway.Leader, error) {
	searching, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	conn, leader, err := a.client.LeaderConn(searching)
	if err != nil {
		return nil, leader, err
	}
	stream, err := rollcallv1.NewClusterServiceClient(conn).TakeSnapshot(ctx, &rollcallv1.TakeSnapshotRequest{})
	if err != nil {
		return nil, leader, gateway.FromStatus(err)
	}
	return &snapshotReader{stream: stream}, leader, nil
}

// snapshotReader reads the content of a snapshot stream.
type snapshotReader struct {
	stream grpc.ServerStreamingClient[rollcallv1.TakeSnapshotResponse]
	rest   []byte
}

func (r *snapshotReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		resp, err := r.stream.Recv()
		if err != nil {
			return 0, gateway.FromStatus(err) // also io.EOF
		}
		r.rest = resp.GetChunk()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
