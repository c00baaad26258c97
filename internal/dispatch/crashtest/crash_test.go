package crashtest

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
	testproc "github.com/rollcall-dev/rollcall/internal/testutil/proc"
	testrabbitmq "github.com/rollcall-dev/rollcall/internal/testutil/rabbitmq"
	testsqs "github.com/rollcall-dev/rollcall/internal/testutil/sqs"
	"github.com/rollcall-dev/rollcall/internal/testutil/tcpproxy"
)

// A relayer has accepted a transaction, and its consumer dies, freezes, or loses the database before it has stored that. The
// transaction reaches the relayer once, and the next consumer waits no longer than the lease.
func TestConsumer_LostBetweenPostAndStore_IsOneTransaction(t *testing.T) {
	t.Run("consumer killed", func(t *testing.T) {
		w := setup(t)
		consumer, _ := w.inFlight()
		killed := time.Now()
		consumer.Kill()
		w.consumer()
		w.submitted("tx", patience)
		require.Less(t, time.Since(killed), lease+time.Minute, "the start of the next consumer included")
		w.isOne("the same key was posted again")
		require.Equal(t, 2, w.relayer.Calls(upstreamtest.Submit))
	})
	t.Run("consumer frozen", func(t *testing.T) {
		w := setup(t)
		consumer, release := w.inFlight()
		require.NoError(t, consumer.Freeze())
		w.consumer()
		w.submitted("tx", patience)
		close(release)
		require.NoError(t, consumer.Signal(syscall.SIGCONT))
		w.post("next", "2") // which both consumers can take
		w.submitted("next", patience)
		require.NoError(t, consumer.Running())
		require.NoError(t, consumer.Stop(syscall.SIGTERM))
		require.Len(t, w.relayer.Transactions(), 2)
	})
	t.Run("consumer stopped", func(t *testing.T) {
		w := setup(t)
		consumer, release := w.inFlight()
		require.NoError(t, consumer.Signal(syscall.SIGTERM))
		time.AfterFunc(500*time.Millisecond, func() { close(release) }) // a consumer that did not wait would have ended
		require.Eventually(t, func() bool { return consumer.Running() != nil }, patience, 10*time.Millisecond)
		require.Contains(t, consumer.Running().Error(), "exit status 0")
		var tx transaction // stored before it ended
		require.Equal(t, http.StatusOK, w.call(http.MethodGet, "/api/v1/relay/status/tx", nil, &tx))
		require.Equal(t, "submitted", tx.Status)
		w.isOne("its answer was stored")
		require.Equal(t, 1, w.relayer.Calls(upstreamtest.Submit))
	})
	t.Run("database killed", func(t *testing.T) {
		w := setup(t)
		consumer, release := w.inFlight()
		w.postgres.Kill()
		close(release)
		require.NotEqual(t, http.StatusOK, w.call(http.MethodGet, "/api/v1/relay/status/tx", nil, new(transaction)))
		w.postgres.Restart()
		w.submitted("tx", patience)
		require.NoError(t, consumer.Running())
		w.isOne("it was accepted before")
	})
	t.Run("database away for one consumer", func(t *testing.T) {
		w := setup(t)
		way, address := tcpproxy.Open(t, w.postgres.URL())
		blind, release := w.inFlight("DATABASE_URL=" + address)
		way.SetDown(true)
		close(release)
		w.consumer()
		w.submitted("tx", patience)
		require.NoError(t, blind.Running())
		w.isOne("the same key was posted again")
	})
}

// One consumer cannot reach Redis, Postgres or the relayers. The other one does the work, and no transaction waits for the first one
// longer than a lease.
func TestConsumer_Blind_OtherDoesTheWork(t *testing.T) {
	w := setup(t)
	sighted := w.consumer()
	posted := 0
	for name, start := range map[string]func() *testproc.Process{
		"Redis": func() *testproc.Process { return w.consumer("REDIS_URL=redis://127.0.0.1:1") },
		"relayers": func() *testproc.Process {
			return w.consumer("CONSUMER_RELAYER_KEY=another-another-another-another-another")
		},
		"Postgres": func() *testproc.Process {
			way, address := tcpproxy.Open(t, w.postgres.URL())
			p := w.consumer("DATABASE_URL=" + address)
			way.SetDown(true)
			return p
		},
	} {
		blind := start()
		for range 12 {
			began := time.Now()
			w.post(number(posted), "1")
			w.submitted(number(posted), patience)
			require.Less(t, time.Since(began), lease, "without %s", name)
			posted++
		}
		require.NoError(t, blind.Running())
		blind.Kill()
	}
	require.NoError(t, sighted.Running())
	require.Len(t, w.relayer.Transactions(), posted)
}

// The message reaches a consumer by each queue, and the one relayer gets its own key.
func TestRelay_QueueAtABroker_BringsEachTransactionOnce(t *testing.T) {
	for name, env := range map[string]func(*testing.T) []string{
		"RabbitMQ": func(t *testing.T) []string { return []string{"QUEUE_URL=" + testrabbitmq.URL(t)} },
		"SQS": func(t *testing.T) []string {
			endpoint := testsqs.Endpoint(t)
			address, ok := strings.CutPrefix(testsqs.QueueURL(t, endpoint, "relay"), "http://")
			require.True(t, ok)
			return []string{
				"QUEUE_URL=sqs://" + address + "?create=true&endpoint=" + url.QueryEscape(endpoint),
				"AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test",
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t, env(t)...)
			w.consumer("CONSUMER_RELAYER_KEY=another-another-another-another-another", "CONSUMER_RELAYER_KEYS=oz-relayer-0:"+relayerKey)
			for i := range 10 {
				w.post(number(i), "1")
			}
			for i := range 10 {
				w.submitted(number(i), patience)
			}
			require.Len(t, w.relayer.Transactions(), 10)
		})
	}
}

// Amounts that no float can hold reach the relayer as the client posted them.
func TestRelay_LargeValue_ReachesTheRelayer(t *testing.T) {
	w := setup(t)
	w.consumer()
	for i, value := range []string{
		"9007199254740993", "115792089237316195423570985008687907853269984665640564039457584007913129639935",
	} {
		w.post(number(i), value)
		w.submitted(number(i), patience)
		require.Equal(t, value, w.relayer.Transactions()[i].Value.String())
		var tx transaction
		require.Equal(t, http.StatusOK, w.call(http.MethodGet, "/api/v1/relay/status/"+number(i), nil, &tx))
		require.Equal(t, value, tx.Value)
	}
}

// The relayer at a known URL is another chain's for a while, as after a restart with another configuration. It gets no transaction
// meanwhile, and all of them when it is back.
func TestRelay_RelayerIsOfAnotherChainForAWhile_GetsNothingMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		own             upstreamtest.Options
		leave, comeBack func(*upstreamtest.Relayer)
	}{
		"of this project": {
			upstreamtest.Options{Scope: "of-1337"},
			func(r *upstreamtest.Relayer) { r.Move("evm:10", 10); r.Rescope("of-10") },
			func(r *upstreamtest.Relayer) { r.Move("evm:1337", 1337); r.Rescope("of-1337") },
		},
		"of another project": {
			upstreamtest.Options{Network: "sepolia", ChainID: 11155111},
			func(r *upstreamtest.Relayer) { r.Move("mainnet", 1) },
			func(r *upstreamtest.Relayer) { r.Move("sepolia", 11155111) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			c.own.Key = relayerKey
			w.relayer = upstreamtest.Start(t, c.own)
			require.NoError(t, w.redis.Client().HSet(t.Context(), "relayer:status:0", "url", w.relayer.URL()).Err())
			w.consumer()
			const each = 20
			post := func(from int) {
				for i := from; i < from+each; i++ {
					w.post(number(i), fmt.Sprint(i))
				}
			}
			post(0)
			for i := range each {
				w.submitted(number(i), patience)
			}
			c.leave(w.relayer)
			calls := w.relayer.Calls(upstreamtest.Find)
			post(each)
			// Several looks at it, and the consumer's tries, change nothing.
			require.Eventually(t, func() bool { return w.relayer.Calls(upstreamtest.Find) > calls+3 }, patience, 50*time.Millisecond)
			require.Len(t, w.relayer.Transactions(), each)
			c.comeBack(w.relayer)
			for i := range 2 * each {
				w.submitted(number(i), patience)
			}
			require.Len(t, w.relayer.Transactions(), 2*each)
		})
	}
}
