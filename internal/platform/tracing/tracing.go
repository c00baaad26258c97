package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Config configures the export.
type Config struct {
	// Service is the name of the process's role, and Version the program's.
	Service, Version string
	// Attributes are further attributes of the process, of which a later one replaces an earlier one, and service.name and
	// service.version. Default: none.
	Attributes []attribute.KeyValue
	// Endpoint is the base URL of an OTLP receiver, such as http://collector:4318; "" exports nothing.
	Endpoint string
	// Sampler decides which traces are exported, one of [Samplers]. Default: the first.
	Sampler string
	// Ratio is the share of traces that samplers with a ratio sample, 0 to 1.
	Ratio  float64
	Logger *slog.Logger
}

// exportTimeout bounds an export, and the last one at the end of the process.
const exportTimeout = 5 * time.Second

// Off makes no spans.
func Off() trace.Tracer { return noop.NewTracerProvider().Tracer("") }

// CheckEndpoint returns why a URL cannot be an endpoint. The error does not contain it, because it may hold a password.
func CheckEndpoint(raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("is not one like http://collector:4318")
	}
	return nil
}

// Samplers are the samplers of OpenTelemetry's OTEL_TRACES_SAMPLER. One whose name begins with parentbased leaves the decision to a
// client that has a trace.
var Samplers = []string{
	"parentbased_traceidratio", "parentbased_always_on", "parentbased_always_off", "traceidratio", "always_on", "always_off",
}

func sampler(cfg Config) sdk.Sampler {
	name, parent := strings.CutPrefix(cmp.Or(cfg.Sampler, Samplers[0]), "parentbased_")
	s := sdk.TraceIDRatioBased(cfg.Ratio)
	switch name {
	case "always_on":
		s = sdk.AlwaysSample()
	case "always_off":
		s = sdk.NeverSample()
	}
	if parent {
		return sdk.ParentBased(s)
	}
	return s
}

// ParseAttributes reads attributes in the format of OTEL_RESOURCE_ATTRIBUTES: key=value,key=value, the values percent-encoded.
func ParseAttributes(text string) ([]attribute.KeyValue, error) {
	var all []attribute.KeyValue
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if key = strings.TrimSpace(key); !ok || key == "" {
			return nil, fmt.Errorf("%q is not key=value", pair)
		}
		decoded, err := url.PathUnescape(strings.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("the value of %s is not percent-encoded: %w", key, err)
		}
		all = append(all, attribute.String(key, decoded))
	}
	return all, nil
}

// Open returns a tracer, and a function that exports what is left and closes it. Without an endpoint the tracer is [Off].
func Open(ctx context.Context, cfg Config) (t trace.Tracer, end func(), err error) {
	if cfg.Endpoint == "" {
		return Off(), func() {}, nil
	}
	exporter, err := otlptracehttp.New(ctx,
		otlptracehttp.WithEndpointURL(strings.TrimRight(cfg.Endpoint, "/")+"/v1/traces"), otlptracehttp.WithTimeout(exportTimeout))
	if err != nil {
		return nil, nil, fmt.Errorf("export of traces: %w", err)
	}
	log := cfg.Logger.With("component", "tracing")
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("spans not exported", "err", err) }))
	provider := sdk.NewTracerProvider(
		sdk.WithBatcher(exporter, sdk.WithExportTimeout(exportTimeout)),
		sdk.WithSampler(sampler(cfg)),
		sdk.WithResource(resource.NewSchemaless(append([]attribute.KeyValue{
			attribute.String("service.name", cfg.Service), attribute.String("service.version", cfg.Version),
		}, cfg.Attributes...)...)),
	)
	return provider.Tracer("github.com/rollcall-dev/rollcall"), func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), exportTimeout)
		defer cancel()
		if err := provider.Shutdown(limited); err != nil {
			log.Warn("last spans not exported", "err", err)
		}
	}, nil
}

var w3c propagation.TraceContext

// Extract returns a context with the trace of a traceparent header. An invalid one is ignored, as the standard requires.
func Extract(ctx context.Context, traceparent string) context.Context {
	return w3c.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent})
}

// Inject returns the traceparent header of a context's span; "" if there is none.
func Inject(ctx context.Context) string {
	header := propagation.MapCarrier{}
	w3c.Inject(ctx, header)
	return header["traceparent"]
}
