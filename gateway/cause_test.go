package gateway

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestCauseOf_TransportErrors_GiveShortCause(t *testing.T) {
	t.Parallel()
	for want, tc := range map[string]struct {
		code codes.Code
		text string
		tls  bool
	}{
		"connection refused":                      {codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`, false},
		"lookup no.invalid on x:53: no such host": {codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp: lookup no.invalid on x:53: no such host"`, false},
		expectsTLS: {codes.Unavailable, `connection error: desc = "error reading server preface: EOF"`, false},
		lacksTLS:   {codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: read tcp 127.0.0.1:56956->127.0.0.1:7471: read: connection reset by peer"`, true},
		"it closed the connection at once: remote error: tls: bad certificate":    {codes.Unavailable, `connection error: desc = "error reading server preface: remote error: tls: bad certificate"`, true},
		"the TLS handshake failed: x509: certificate signed by unknown authority": {codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: x509: certificate signed by unknown authority"`, true},
		"it answers in HTTP/1.1 and is not a cluster port":                        {codes.Unavailable, `connection error: desc = "error reading server preface: http2: failed reading the frame payload: http2: frame too large, note that the frame header looked like an HTTP/1.1 header"`, false},
		"unknown service (Unimplemented)":                                         {codes.Unimplemented, "unknown service", false},
	} {
		err := fmt.Errorf("ping n1:7400: %w", FromStatus(status.Error(tc.code, tc.text)))
		require.Equal(t, want, causeOf(err, tc.tls, time.Second))
	}
	require.Equal(t, "no answer within 200ms", causeOf(fmt.Errorf("ping: %w", context.DeadlineExceeded), false, 200*time.Millisecond))
	require.Equal(t, "odd", causeOf(errors.New("odd"), false, time.Second))
}
