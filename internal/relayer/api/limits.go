package api

import (
	"context"
	"time"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

const (
	// maxLists is how many lists of transactions are answered concurrently. Each uses a database connection while it counts
	// rows. Submissions and health need connections too: there are 8 or more, unless the database's URL sets fewer.
	maxLists = 4
	// maxRPCs is how many requests hold nodes' responses in memory concurrently: up to a few times [maxAnswers] each.
	maxRPCs = 16

	acquireTimeout = time.Second
	// slowReaderTimeout is how long a client may take to read a response that holds a semaphore slot. It is enough for 25
	// MB at 20 Mbit/s: a page of transactions with the maximum of data.
	slowReaderTimeout = 10 * time.Second
)

// semaphore bounds how many responses of a kind are made and written concurrently. A slow reader keeps its slot, and its
// response's memory, for the handler's slowReaderTimeout at most.
type semaphore struct {
	taken chan struct{} // holds one element per slot in use
	full  string        // the error's limit if no slot is free
}

// newSemaphore returns a semaphore of a number of slots, with the limit that its error names.
func newSemaphore(most int, full string) semaphore {
	return semaphore{taken: make(chan struct{}, most), full: full}
}

// take waits up to acquireTimeout for a slot. The caller calls leave when its response is written.
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
