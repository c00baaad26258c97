package coordinator

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func TestUploadIsBounded(t *testing.T) {
	chunk := &rollcallv1.RestoreSnapshotRequest{Chunk: make([]byte, 1000), AllowForeign: true}
	u := &upload{recv: func() (*rollcallv1.RestoreSnapshotRequest, error) { return chunk, nil }, size: maxSnapshot - 2500}
	n, err := io.Copy(io.Discard, u)
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.EqualValues(t, 2000, n)
	require.True(t, u.allowForeign)
	_, again := u.Read(make([]byte, 1))
	require.Equal(t, err, again)
}
