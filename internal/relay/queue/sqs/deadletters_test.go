package sqs_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relay/queue"
	"github.com/rollcall-dev/rollcall/internal/relay/queue/queuetest"
	"github.com/rollcall-dev/rollcall/internal/relay/queue/sqs"
	testpostgres "github.com/rollcall-dev/rollcall/internal/testutil/postgres"
	testsqs "github.com/rollcall-dev/rollcall/internal/testutil/sqs"
)

// faulty is a proxy before SQS. It answers the next requests of an operation with an error, or executes them and loses the
// answers.
type faulty struct {
	operation string
	lose      bool
	left      atomic.Int32
	forward   *httputil.ReverseProxy
	// arrived, if not nil, is called for each request of the operation.
	arrived func()
}

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ours := r.Header.Get("X-Amz-Target") == "AmazonSQS."+f.operation
	if ours && f.arrived != nil {
		f.arrived()
	}
	if !ours || f.left.Add(-1) < 0 {
		f.forward.ServeHTTP(w, r)
		return
	}
	if f.lose {
		f.forward.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler) // closes the connection
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, `{"__type":"ServiceUnavailable"}`)
}

// buried returns a queue with dead letters, whose requests pass f.
func buried(t *testing.T, f *faulty, letters int) *sqs.Queue {
	t.Helper()
	endpoint := testsqs.Endpoint(t)
	to, err := url.Parse(endpoint)
	require.NoError(t, err)
	f.forward = httputil.NewSingleHostReverseProxy(to)
	proxy := httptest.NewServer(f)
	t.Cleanup(proxy.Close)
	address := queueURL(t, endpoint)
	db := testpostgres.New(t, testpostgres.Migrated(queue.Migrations())).Pool(t)
	open := func(address string) *sqs.Queue {
		q, err := sqs.New(db, address, queue.Config{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, q.Close()) })
		return q
	}
	direct := open(address)
	ids := make([]uuid.UUID, letters)
	for i := range ids {
		ids[i] = uuid.New()
	}
	require.NoError(t, queuetest.Enqueue(t.Context(), db, ids...))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- direct.Run(ctx) }()
	go func() {
		ended <- direct.Receive(ctx, 4, func(context.Context, queue.Message) queue.Verdict { return queue.Dead("cannot be sent") })
	}()
	require.Eventually(t, func() bool {
		found, err := direct.List(t.Context(), letters)
		return err == nil && len(found) == letters
	}, time.Minute, 20*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
	return open(strings.Replace(address, url.QueryEscape(endpoint), url.QueryEscape(proxy.URL), 1))
}

func TestList_ShowingFails_IsRepeated(t *testing.T) {
	t.Parallel()
	f := &faulty{operation: "ChangeMessageVisibilityBatch"}
	q := buried(t, f, 12)
	f.left.Store(6) // the SDK repeats each once
	for range 2 {
		letters, err := q.List(t.Context(), 12)
		require.NoError(t, err)
		require.Len(t, letters, 12)
	}
	require.Negative(t, f.left.Load())
}

// SQS hides the letters of an answer that was lost. The list does not look complete then.
func TestList_AnswerIsLost_ReportsHidden(t *testing.T) {
	t.Parallel()
	f := &faulty{operation: "ReceiveMessage", lose: true}
	q := buried(t, f, 12)
	f.left.Store(1)
	_, err := q.List(t.Context(), 20)
	require.ErrorContains(t, err, "list dead letters: 10 dead letters stay hidden for up to 5m0s, because an answer was lost (")
	require.ErrorContains(t, err, "; repeat the command then")

	letters, err := q.List(t.Context(), 20)
	require.NoError(t, err)
	require.Len(t, letters, 2, "only what nothing hides")
}

// SQS has hidden nothing if it refused the request.
func TestList_RequestIsRefused_ClaimsNothingHidden(t *testing.T) {
	t.Parallel()
	f := &faulty{operation: "ReceiveMessage"}
	q := buried(t, f, 1)
	f.left.Store(2)
	_, err := q.List(t.Context(), 20)
	require.ErrorContains(t, err, "ServiceUnavailable")
	require.NotContains(t, err.Error(), "hidden")
	letters, err := q.List(t.Context(), 20)
	require.NoError(t, err)
	require.Len(t, letters, 1)
}

// An answer without letters hides nothing.
func TestList_EmptyAnswerIsLost_Succeeds(t *testing.T) {
	t.Parallel()
	f := &faulty{operation: "ReceiveMessage", lose: true}
	q := buried(t, f, 1)
	n, err := q.ReplayAll(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	f.left.Store(1)
	letters, err := q.List(t.Context(), 20)
	require.NoError(t, err)
	require.Empty(t, letters)
	require.Negative(t, f.left.Load())
}

// A caller that gives up does not break off a request whose answer hides letters.
func TestList_CallerGivesUp_ShowsTheLetters(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	f := &faulty{operation: "ReceiveMessage", arrived: stop}
	q := buried(t, f, 12)
	_, err := q.List(ctx, 20)
	require.ErrorIs(t, err, context.Canceled)
	letters, err := q.List(t.Context(), 20)
	require.NoError(t, err)
	require.Len(t, letters, 12)
}
