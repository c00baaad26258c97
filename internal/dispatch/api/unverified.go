package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

const (
	// DefaultMaxWebhook is the default of [Config.MaxWebhook].
	DefaultMaxWebhook = 64 << 10
	// maxUnverified is the budget of all bodies of webhooks whose signatures are not verified, in bytes: any client can send one. It
	// is 256 bodies of the default's size, and is not below the limit of one, which is [maxBody] at most.
	maxUnverified = 16 << 20
	// webhookTimeout is how long a relayer may take to send a webhook's body, which holds its part of the budget meanwhile.
	webhookTimeout = 5 * time.Second
)

var (
	errNoRoom = &statusError{http.StatusServiceUnavailable, "unavailable", "too many webhooks at once; nothing was stored: try again"}
	errSlow   = &statusError{http.StatusRequestTimeout, "timeout", fmt.Sprintf("the body must arrive within %v", webhookTimeout)}
)

// unverified reads the bodies of webhooks. A body takes its size from the budget before it is read.
type unverified struct {
	most    int64 // bytes of a body
	budget  *semaphore.Weighted
	held    atomic.Int64 // bytes taken from the budget
	timeout time.Duration
}

func newUnverified(most int64) *unverified {
	return &unverified{most: most, budget: semaphore.NewWeighted(maxUnverified), timeout: webhookTimeout}
}

// read returns a request's body. The caller calls release once the body's signature is verified, or the body is dropped. read waits up to
// acquireTimeout for the budget.
func (u *unverified) read(ctx context.Context, w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	size := r.ContentLength
	if size < 0 { // chunked
		size = u.most
	}
	if size > u.most {
		return nil, nil, u.tooLarge(w)
	}
	waiting, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	if err := u.budget.Acquire(waiting, size); err != nil {
		w.Header().Set("Connection", "close") // instead of reading the body
		return nil, nil, errNoRoom
	}
	u.held.Add(size)
	release = func() {
		u.held.Add(-size)
		u.budget.Release(size)
	}
	if body, err = u.readAll(w, r, size); err != nil {
		release()
		return nil, nil, err
	}
	return body, release, nil
}

// readAll reads a body of at most size bytes, which is allocated at once: a buffer that grows would hold up to three times as much.
func (u *unverified) readAll(w http.ResponseWriter, r *http.Request, size int64) ([]byte, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(u.timeout)) // the server's applies if this fails
	body := make([]byte, size)
	n, err := io.ReadFull(r.Body, body)
	if err == nil && r.ContentLength < 0 {
		if more, _ := io.ReadFull(r.Body, make([]byte, 1)); more > 0 {
			return nil, u.tooLarge(w)
		}
	}
	switch ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		return nil, errSlow
	case err != nil && (!ended || r.ContentLength >= 0):
		return nil, dispatch.Invalidf("", "the body ended early")
	}
	_ = control.SetReadDeadline(time.Time{}) // net/http's next one is for the next request
	return body[:n], nil
}

func (u *unverified) tooLarge(w http.ResponseWriter) error {
	w.Header().Set("Connection", "close")
	return tooLarge(u.most)
}
