package outboxtest_test

import (
	"sync"
	"testing"
	"time"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/outboxtest"
)

func TestBroker_Conforms(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	brokers := map[string]*outboxtest.Broker{}
	outboxtest.RunTransport(t, func(t testing.TB) outbox.Transport {
		mu.Lock()
		defer mu.Unlock()
		if brokers[t.Name()] == nil {
			brokers[t.Name()] = outboxtest.NewBroker(500 * time.Millisecond)
		}
		return brokers[t.Name()]
	})
}
