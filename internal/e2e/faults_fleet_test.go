package e2e

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

func TestFailover_TenThousandServices_NoneIsRemoved(t *testing.T) {
	const services, servers = 10_000, 4
	var addrs []string
	for i := range servers {
		addrs = append(addrs, launchRelayer(t, fmt.Sprint("relayer-", i)))
	}
	c := startCluster(t, options{env: map[string]string{"HEALTH_CHECK_INTERVAL_MS": "10000", "ROLLCALL_LOG_LEVEL": "info"}})
	req := &rollcallv1.RegisterServicesRequest{Writer: operator()}
	var ids []string
	for i := range services {
		s := service(fmt.Sprintf("svc-%d", i), "http://"+addrs[i%servers])
		req.Services = append(req.Services, s)
		ids = append(ids, s.Id)
	}
	c.write(req)
	slices.Sort(ids)
	c.awaitActive(2*patience, ids...)
	stop := c.watchSet(ids...)

	killed, epoch := c.leader()
	killed.kill()
	_, epoch = c.leaderAfter(epoch)
	c.awaitEpochInRedis(epoch)
	// A busy machine may change the leader again, which then starts again.
	eventually(t, 2*patience, func() bool {
		leader, _ := c.leader()
		return leader.metric(t, `rollcall_director_state{state="running"}`) == 1
	}, "all are checked")
	sum := func(name string) (all float64) {
		for _, n := range c.nodes {
			if n != killed {
				all += n.metric(t, name)
			}
		}
		return all
	}
	// And two thirds of the checks of an ordinary interval in addition.
	checked := sum("rollcall_check_successes_total")
	require.GreaterOrEqual(t, checked, float64(services))
	eventually(t, 2*patience, func() bool { return sum("rollcall_check_successes_total") >= checked+services*2/3 }, "ordinary checks")
	stop()
	require.Empty(t, c.logged("relayer removed"))
	require.Zero(t, sum(`rollcall_removals_total{reason="health"}`))
	require.Len(t, c.active(), services)
}

// relayerAt, if set, makes this binary a relayer; its value is the address.
const relayerAt = "E2E_RELAYER_AT"

// serveRelayer answers checks until the process is killed.
func serveRelayer(addr string) (code int) {
	s := &http.Server{Addr: addr, ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	fmt.Fprintln(os.Stderr, s.ListenAndServe())
	return 1
}

// launchRelayer starts a healthy relayer in its own process and returns its address. The test's own process may be too
// busy to answer in time.
func launchRelayer(t *testing.T, id string) (addr string) {
	t.Helper()
	addr = fmt.Sprintf("127.0.0.1:%d", freePort(t))
	launchProgram(t, id, []string{relayerAt + "=" + addr}, os.Args[0])
	return addr
}

// metric returns a sample of /metrics; -1 if it is missing.
func (n *node) metric(t *testing.T, name string) float64 {
	t.Helper()
	_, body := n.page(t, "/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			require.NoError(t, err)
			return f
		}
	}
	return -1
}
