package process

import (
	"log/slog"
	"net/http"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// build is what the program was built from. Each value may be "unknown".
type build struct{ version, revision, golang string }

// readBuild returns the version of the module, or the commit, and the commit and the version of Go.
func readBuild() build {
	b := build{"unknown", "unknown", "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	b.version, b.golang = info.Main.Version, info.GoVersion
	revision := settings["vcs.revision"]
	if revision != "" {
		b.revision = revision
	}
	if b.version == "(devel)" && len(revision) >= 12 {
		b.version = "devel-" + revision[:12]
		if settings["vcs.modified"] == "true" {
			b.version += "-dirty"
		}
	}
	return b
}

// Version returns the version of the module, or the commit that the program was built from, and the version of Go.
func Version() string {
	b := readBuild()
	if b.golang == "unknown" {
		return b.version
	}
	return b.version + " " + b.golang
}

// newRegistry returns the registry of a role, with the metrics of every process.
func newRegistry() *prometheus.Registry {
	b := readBuild()
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "rollcall_build_info", Help: "1; the labels are the program's version, its commit, and the version of Go.",
			ConstLabels: prometheus.Labels{"version": b.version, "revision": b.revision, "goversion": b.golang},
		}, func() float64 { return 1 }),
	)
	return reg
}

// maxScrapes is the maximum number of concurrent scrapes.
const maxScrapes = 4

// Metrics serves the registry. A metric that cannot be read is logged, and does not keep the others from being served.
func (p *Process) Metrics() http.Handler {
	return promhttp.HandlerFor(p.Registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(p.Log.Handler(), slog.LevelError), ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes,
	})
}
