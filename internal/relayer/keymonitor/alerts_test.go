package keymonitor_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer/keymonitor"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/service"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
	"github.com/rollcall-dev/rollcall/internal/relayer/tracker"
	"github.com/rollcall-dev/rollcall/internal/webhook"
)

// names records the names of registered metrics, also of those without series.
type names struct {
	prometheus.Registerer
	known map[string]bool
}

func (n names) Register(c prometheus.Collector) error {
	descriptions := make(chan *prometheus.Desc, 100)
	c.Describe(descriptions)
	close(descriptions)
	for d := range descriptions {
		n.known[fullName.FindStringSubmatch(d.String())[1]] = true
	}
	return n.Registerer.Register(c)
}

func (n names) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := n.Register(c); err != nil {
			panic(err)
		}
	}
}

var (
	fullName   = regexp.MustCompile(`fqName: "([^"]+)"`)
	metricName = regexp.MustCompile(`\brollcall_[a-z0-9_]+`)
	suffix     = regexp.MustCompile(`_(bucket|sum|count)$`)
	alertName  = regexp.MustCompile(`(?m)alert(?:name)?: (\w+)`)
)

// An alert on a missing metric never fires.
func TestAlerts_MetricsExist(t *testing.T) {
	t.Parallel()
	reg := names{Registerer: prometheus.NewRegistry(), known: map[string]bool{}}
	evm.NewMetrics(reg)
	store.NewMetrics(reg)
	service.NewMetrics(reg)
	keymonitor.NewMetrics(reg)
	sender.NewMetrics(reg)
	tracker.NewMetrics(reg)
	webhook.NewMetrics(reg)
	for _, file := range []string{"relayer.rules.yml", "relayer.test.yml"} {
		text, err := os.ReadFile("../../../deploy/prometheus/" + file)
		require.NoError(t, err)
		found := metricName.FindAllString(string(text), -1)
		require.NotEmpty(t, found)
		for _, name := range found {
			require.True(t, reg.known[name] || reg.known[suffix.ReplaceAllString(name, "")], "%s: no metric has the name %s", file, name)
		}
	}
}

func TestAlerts_EachHasFiringTest(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile("../../../deploy/prometheus/relayer.rules.yml")
	require.NoError(t, err)
	tests, err := os.ReadFile("../../../deploy/prometheus/relayer.test.yml")
	require.NoError(t, err)
	fired := map[string]bool{}
	for test := range strings.SplitSeq(string(tests), "- eval_time:") { // those with alerts are written over several lines
		if strings.Contains(test, "exp_alerts:") {
			fired[alertName.FindStringSubmatch(test)[1]] = true
		}
	}
	for _, alert := range alertName.FindAllStringSubmatch(string(rules), -1) {
		require.True(t, fired[alert[1]], "%s is never fired", alert[1])
	}
}
