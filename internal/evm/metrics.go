package evm

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts calls to nodes. A process registers it once and shares it between its Clients.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	up       *prometheus.GaugeVec
	head     *prometheus.GaugeVec
	headTime *prometheus.GaugeVec
	excluded *prometheus.GaugeVec
}

// NewMetrics registers the metrics with reg; nil leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	return &Metrics{
		requests: f.NewCounterVec(prometheus.CounterOpts{
			Name: "rollcall_rpc_requests_total",
			Help: "Calls to nodes, each of a batch counted, by outcome: ok, error (about the call), fault (an error about the node), rate_limited, timeout or transport.",
		}, []string{"endpoint", "method", "outcome"}),
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rollcall_rpc_duration_seconds",
			Help:    "Time from a request to a node, a whole batch being one, to its answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"endpoint", "method"}),
		up: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_rpc_endpoint_up", Help: "1 while a node's endpoint returns its head, on the right chain and without lag.",
		}, []string{"endpoint"}),
		head: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_rpc_head_number", Help: "Number of the newest block that an endpoint has reported.",
		}, []string{"endpoint"}),
		headTime: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_rpc_head_timestamp_seconds", Help: "Unix time of the newest block that an endpoint has reported, by the chain's clock.",
		}, []string{"endpoint"}),
		excluded: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollcall_rpc_endpoint_excluded", Help: "1 while an endpoint is not used because it is on another chain, or has another history than the recorded one.",
		}, []string{"endpoint"}),
	}
}

// Values of the label outcome.
const (
	outcomeOK        = "ok"
	outcomeError     = "error"
	outcomeFault     = "fault"
	outcomeLimited   = "rate_limited"
	outcomeTimeout   = "timeout"
	outcomeTransport = "transport"
)

// methodLabels are the methods with a label of their own. A caller of Call may use any method.
var methodLabels = func() map[string]bool {
	known := map[string]bool{}
	for _, m := range []string{
		"eth_accounts", "eth_blockNumber", "eth_call", "eth_chainId", "eth_createAccessList", "eth_estimateGas",
		"eth_feeHistory", "eth_gasPrice", "eth_getBalance", "eth_getBlockByHash", "eth_getBlockByNumber",
		"eth_getBlockReceipts", "eth_getCode", "eth_getLogs", "eth_getProof", "eth_getStorageAt",
		"eth_getTransactionByHash", "eth_getTransactionCount", "eth_getTransactionReceipt",
		"eth_maxPriorityFeePerGas", "eth_sendRawTransaction", "eth_syncing", "net_version", "web3_clientVersion",
	} {
		known[m] = true
	}
	return known
}()

func methodLabel(method string) string {
	if methodLabels[method] {
		return method
	}
	return "other"
}

// count records calls of one request, which all took the same time. The duration is recorded for the method of the
// first.
func (m *Metrics) count(endpoint string, calls []call, answers []answer, took time.Duration, failed string) {
	if len(calls) == 0 {
		return
	}
	m.duration.WithLabelValues(endpoint, methodLabel(calls[0].method)).Observe(took.Seconds())
	type kind struct{ method, outcome string }
	counts := make(map[kind]int, 2)
	for i, c := range calls {
		outcome := failed
		if failed == "" {
			outcome = outcomeOK
			if IsNoAnswer(answers[i].err) {
				outcome = outcomeFault
			} else if answers[i].err != nil {
				outcome = outcomeError
			}
		}
		counts[kind{methodLabel(c.method), outcome}]++
	}
	for k, n := range counts {
		m.requests.WithLabelValues(endpoint, k.method, k.outcome).Add(float64(n))
	}
}
