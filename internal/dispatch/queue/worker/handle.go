package worker

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
)

// panicPause is the delay of a message whose handler panicked.
const panicPause = time.Second

// Handle calls a handler, and returns its valid verdict. If the handler panics, the message has failed: one message must not end the
// process, and with it the handling of all others, on each consumer in turn.
func Handle(ctx context.Context, log *slog.Logger, handle queue.Handler, m queue.Message) (v queue.Verdict) {
	defer func() {
		if panicked := recover(); panicked != nil {
			log.Error("handler panicked", "component", "consumer", "tx", m.ID, "attempts", m.Attempts, "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
			v = queue.Failed(fmt.Sprintf("the handler panicked: %v", panicked), panicPause)
		}
	}()
	return handle(ctx, m).Normal()
}
