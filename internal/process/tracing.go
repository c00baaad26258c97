package process

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"

	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
)

// TracingFlags are where spans are exported to. Headers that a receiver wants are read from OTEL_EXPORTER_OTLP_HEADERS.
type TracingFlags struct {
	Endpoint string  `name:"otlp-endpoint" env:"OTEL_EXPORTER_OTLP_ENDPOINT" placeholder:"URL" help:"OpenTelemetry receiver (OTLP over HTTP), such as http://collector:4318; without one nothing is exported."`
	Ratio    float64 `name:"trace-ratio" env:"OTEL_TRACES_SAMPLER_ARG" default:"1" min:"0" max:"1" help:"Share of the traces that begin here which is exported, 0 to 1. For others the client has decided."`
}

// CheckFlags reports problems of the flags.
func (f *TracingFlags) CheckFlags(p *config.Problems) {
	if f.Endpoint != "" {
		if err := tracing.CheckEndpoint(f.Endpoint); err != nil {
			p.Addf(&f.Endpoint, "", "%v", err)
		}
	}
}

// Open opens the tracer of a service.
func (f *TracingFlags) Open(ctx context.Context, service string, log *slog.Logger) (trace.Tracer, func(), error) {
	return tracing.Open(ctx, tracing.Config{Service: service, Version: Version(), Endpoint: f.Endpoint, Ratio: f.Ratio, Logger: log})
}
