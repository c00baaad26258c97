package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/apikey"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// accepting is a relayer without costs.
type accepting struct {
	relayer.Service
	tx relayer.Transaction
}

func (s *accepting) Submit(_ context.Context, sub relayer.Submission) (*relayer.Transaction, error) {
	tx := s.tx
	tx.Request = sub.Request
	return &tx, nil
}

// BenchmarkSubmit measures the API's own part of a submission: a token transfer with an idempotency key.
func BenchmarkSubmit(b *testing.B) {
	service := &accepting{tx: relayer.Transaction{ID: uuid.Must(uuid.NewV7()), Status: relayer.Allocated, Target: poolID, CreatedAt: created}}
	h, err := NewHandler(Config{Service: service, Keys: []apikey.Key{{Name: "first", Key: testKey}, {Name: "other", Key: otherKey}}})
	require.NoError(b, err)
	body := []byte(`{"to":"` + target + `","value":"0x0","data":"0xa9059cbb000000000000000000000000742d35cc6634c0532925a3b844bc454e4438f44e` +
		`0000000000000000000000000000000000000000000000000de0b6b3a7640000","gas_limit":65000,"speed":"fast",` +
		`"metadata":{"method":"transfer","orderbook":"b","trader":"0x742d35cc6634c0532925a3b844bc454e4438f44e"}}`)
	r := httptest.NewRequest(http.MethodPost, poolTransactions, nil)
	r.Header = http.Header{
		"Authorization": {"Bearer " + testKey}, "Content-Type": {"application/json"}, idempotencyKey: {"0123456789"}, "X-Request-Id": {"r-1"},
	}
	r.ContentLength = int64(len(body))
	w := &sink{header: http.Header{}}
	reader := bytes.NewReader(body)
	b.ReportAllocs()
	for b.Loop() {
		reader.Reset(body)
		r.Body = io.NopCloser(reader)
		clear(w.header)
		h.ServeHTTP(w, r)
	}
	require.Equal(b, http.StatusOK, w.code)
}

type sink struct {
	header http.Header
	code   int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }
func (s *sink) WriteHeader(code int)        { s.code = code }
