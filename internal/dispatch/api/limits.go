package api

import (
	"context"
	"net/http"
	"time"

	"github.com/rollcall-dev/rollcall/internal/dispatch"
)

const (
	// maxLists is how many lists of transactions are answered concurrently. Each uses a database connection while it reads rows, and
	// holds up to 26 MB of JSON, beside the rows, until its client has read them: a page of transactions with the maximum of data.
	// Submissions and webhooks need connections too: there are 8 or more, unless the database's URL sets fewer.
	maxLists = 4
	// acquireTimeout is how long a request waits for its turn.
	acquireTimeout = time.Second
	// slowReaderTimeout is how long a client may take to read a list. It is enough for 25 MB at 20 Mbit/s.
	slowReaderTimeout = 10 * time.Second
)

// takeList waits up to acquireTimeout until fewer than maxLists lists are answered. The caller calls leave when its list is written.
func (h *Handler) takeList(ctx context.Context) (leave func(), err error) {
	late := time.NewTimer(acquireTimeout)
	defer late.Stop()
	select {
	case h.lists <- struct{}{}:
		return func() { <-h.lists }, nil
	case <-late.C:
	case <-ctx.Done(): // the client has gone
	}
	return nil, &dispatch.LimitError{Limit: "limit of concurrent lists of transactions", After: acquireTimeout}
}

// answerList writes a list. A slow reader keeps its turn, and the list's memory, for the handler's slowReaderTimeout at most.
func (h *Handler) answerList(w http.ResponseWriter, p page) {
	body := encode(p)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(h.slowReaderTimeout)) // the server's applies if this fails
	write(w, http.StatusOK, body)
}
