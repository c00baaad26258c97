package process

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/rollcall-dev/rollcall/internal/platform/config"
	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
)

// TracingFlags are where spans are exported to. Headers that a receiver wants are read from OTEL_EXPORTER_OTLP_HEADERS.
//
// Each flag has the variable that OpenTelemetry gives it, and replaces it, as all flags do.
type TracingFlags struct {
	Endpoint   string  `name:"otlp-endpoint" env:"OTEL_EXPORTER_OTLP_ENDPOINT" placeholder:"URL" help:"OpenTelemetry receiver (OTLP over HTTP), such as http://collector:4318; without one nothing is exported."`
	Service    string  `name:"trace-service-name" env:"OTEL_SERVICE_NAME" placeholder:"NAME" help:"Name of the service in the traces; rollcall- and the role by default."`
	Attributes string  `name:"trace-attributes" env:"OTEL_RESOURCE_ATTRIBUTES" placeholder:"KEY=VALUE,…" help:"Attributes of this process in the traces, such as deployment.environment=production, the values percent-encoded."`
	Sampler    string  `name:"trace-sampler" env:"OTEL_TRACES_SAMPLER" enum:"parentbased_traceidratio,parentbased_always_on,parentbased_always_off,traceidratio,always_on,always_off" default:"parentbased_traceidratio" help:"Which traces are exported; OpenTelemetry's other samplers are refused. With parentbased a client that has a trace has decided."`
	Ratio      float64 `name:"trace-ratio" env:"OTEL_TRACES_SAMPLER_ARG" default:"1" min:"0" max:"1" help:"Share of the traces that begin here which a sampler with traceidratio exports, wherever the sampler is set."`

	replaced []string // variables whose values the command line replaces, found by CheckFlags
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
	for _, field := range []any{&f.Endpoint, &f.Service, &f.Attributes, &f.Sampler, &f.Ratio} {
		if variable := p.Replaced(field); variable != "" {
			f.replaced = append(f.replaced, variable)
		}
	}
}

// open opens the tracer of a service. Other programs read the same variables, so that the log has which of them do not count here.
func (f *TracingFlags) open(ctx context.Context, service string, log *slog.Logger) (trace.Tracer, func(), error) {
	attributes, err := tracing.ParseAttributes(f.Attributes)
	if err != nil {
		return nil, nil, err
	}
	if f.Service != "" {
		attributes = append(attributes, attribute.String("service.name", f.Service))
	}
	if f.Endpoint != "" {
		line := []any{"sampler", f.Sampler, "ratio", f.Ratio}
		if len(f.replaced) > 0 {
			line = append(line, "replaced", f.replaced)
		}
		log.Info("exporting traces", line...)
	}
	return tracing.Open(ctx, tracing.Config{
		Service: service, Version: Version(), Attributes: attributes, Endpoint: f.Endpoint, Sampler: f.Sampler, Ratio: f.Ratio, Logger: log,
	})
}
