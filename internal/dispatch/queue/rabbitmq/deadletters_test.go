package rabbitmq

import (
	"context"
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// The broker answers with an internal error until the process of a quorum queue runs. A call is repeated then, unless it has begun.
func TestWhileBroken_InternalErrors_AreRepeated(t *testing.T) {
	t.Parallel()
	broken := fmt.Errorf("receive: %w", &amqp.Error{Code: amqp.InternalError, Reason: "noproc"})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx   context.Context
		begun bool
		errs  []error // of the calls; the last one of all further calls
		calls int
		err   error
	}{
		"recovers":     {t.Context(), false, []error{broken, broken, nil}, 3, nil},
		"stays broken": {t.Context(), false, []error{broken}, brokerTries, broken},
		"has begun":    {t.Context(), true, []error{broken}, 1, broken},
		"other error":  {t.Context(), false, []error{errTimeout}, 1, errTimeout},
		"other answer": {t.Context(), false, []error{&amqp.Error{Code: amqp.AccessRefused}}, 1, &amqp.Error{Code: amqp.AccessRefused}},
		"canceled":     {ended, false, []error{broken}, 1, broken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			err := whileBroken(c.ctx, func() (bool, error) {
				calls++
				return c.begun, c.errs[min(calls, len(c.errs))-1]
			})
			require.Equal(t, c.calls, calls)
			require.Equal(t, c.err, err)
		})
	}
}
