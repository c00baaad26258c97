package status

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/rollcall-dev/rollcall/fsm"
)

// BenchmarkStatus measures /status with a fleet of 10,000, once the leader's answer is available.
func BenchmarkStatus(b *testing.B) {
	raw := encode(many(10_000))
	s := &Server{cfg: Config{Directory: fsm.New()}, source: newSource(
		func(_ context.Context, b []byte) ([]byte, error) { return append(b, raw...), nil }, func() bool { return true })}
	defer s.source.close()
	req := httptest.NewRequest("GET", "/status", nil)
	b.ReportAllocs()
	for b.Loop() {
		s.status(nobody{http.Header{}}, req)
	}
}

// nobody discards the response.
type nobody struct{ h http.Header }

func (n nobody) Header() http.Header       { return n.h }
func (nobody) Write(p []byte) (int, error) { return len(p), nil }
func (nobody) WriteHeader(int)             {}
