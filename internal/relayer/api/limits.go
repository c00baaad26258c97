package api

import (
	"context"
	"time"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

const (
	// maxLists is how many lists of transactions are answered at once. Each takes a connection to the database for as long as
	// what it counts is long, and submissions and health need some, too: there are 8 or more, unless the database's URL says fewer.
	maxLists = 4
	// maxRPCs is how many requests have what nodes answer in memory at once: some times [maxAnswers] each.
	maxRPCs = 16

	acquireTimeout = time.Second
	// slowReaderTimeout is how long a client may take to read what others wait for the place of. It is enough for 25 MB, a page of
	// transactions with as much data as they may have, at 20 Mbit/s.
	slowReaderTimeout = 10 * time.Second
)

// semaphore bound how many answers of a kind are made and written concurrently. A slow reader keeps its place, and its answer's
// memory, for the handler's patience at most.
type semaphore struct {
	taken chan struct{} // holds one for each
	full  string        // what is told where there is none
}

func newPlaces(most int, full string) semaphore {
	return semaphore{taken: make(chan struct{}, most), full: full}
}

// take waits a moment for a place, which the caller leaves when its answer is written.
func (h *Handler) take(ctx context.Context, c *exchange, p semaphore) (leave func(), err error) {
	late := time.NewTimer(acquireTimeout)
	defer late.Stop()
	select {
	case p.taken <- struct{}{}:
		c.slowReaderTimeout = h.slowReaderTimeout
		return func() { <-p.taken }, nil
	case <-late.C:
		return nil, &relayer.LimitError{Limit: p.full, After: acquireTimeout}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
