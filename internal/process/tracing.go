package process

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
)

// TracingFlags are where spans are exported to. Headers that a receiver wants are read from OTEL_EXPORTER_OTLP_HEADERS.
type TracingFlags struct {
	Endpoint   string  `name:"otlp-endpoint" env:"OTEL_EXPORTER_OTLP_ENDPOINT" placeholder:"URL" help:"OpenTelemetry receiver (OTLP over HTTP), such as http://collector:4318; without one nothing is exported."`
	Service    string  `name:"trace-service-name" env:"OTEL_SERVICE_NAME" placeholder:"NAME" help:"Name of the service in the traces; rollcall- and the role by default."`
	Attributes string  `name:"trace-attributes" env:"OTEL_RESOURCE_ATTRIBUTES" placeholder:"KEY=VALUE,…" help:"Attributes of this process in the traces, such as deployment.environment=production, the values percent-encoded."`
	Sampler    string  `name:"trace-sampler" env:"OTEL_TRACES_SAMPLER" enum:"parentbased_traceidratio,parentbased_always_on,parentbased_always_off,traceidratio,always_on,always_off" default:"parentbased_traceidratio" help:"Which traces are exported. With parentbased a client that has a trace has decided."`
	Ratio      float64 `name:"trace-ratio" env:"OTEL_TRACES_SAMPLER_ARG" default:"1" min:"0" max:"1" help:"Share of the traces that begin here which is exported, 0 to 1, by a sampler with traceidratio."`
}

// CheckFlags reports problems of the flags.
func (f *TracingFlags) CheckFlags(p *config.Problems) {
	if f.Endpoint != "" {
		if err := tracing.CheckEndpoint(f.Endpoint); err != nil {
			p.Addf(&f.Endpoint, "", "%v", err)
		}
	}
	if _, err := tracing.ParseAttributes(f.Attributes); err != nil {
		p.Addf(&f.Attributes, "give them as deployment.environment=production,team=payments", "%v", err)
	}
	// Programs that read the same variables would sample another share.
	const environment = " in the environment"
	if strings.HasSuffix(p.Where(&f.Sampler), environment) && f.Ratio != 1 && !strings.HasSuffix(p.Where(&f.Ratio), environment) {
		p.Addf(&f.Ratio, fmt.Sprintf("set OTEL_TRACES_SAMPLER_ARG=%v instead of it, or unset OTEL_TRACES_SAMPLER", f.Ratio),
			"contradicts %s, whose ratio is OTEL_TRACES_SAMPLER_ARG", p.Where(&f.Sampler))
	}
}

// open opens the tracer of a service.
func (f *TracingFlags) open(ctx context.Context, service string, log *slog.Logger) (trace.Tracer, func(), error) {
	attributes, err := tracing.ParseAttributes(f.Attributes)
	if err != nil {
		return nil, nil, err
	}
	if f.Service != "" {
		attributes = append(attributes, attribute.String("service.name", f.Service))
	}
	return tracing.Open(ctx, tracing.Config{
		Service: service, Version: Version(), Attributes: attributes, Endpoint: f.Endpoint, Sampler: f.Sampler, Ratio: f.Ratio, Logger: log,
	})
}
