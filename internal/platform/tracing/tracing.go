package tracing

import (
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
	// Endpoint is the base URL of an OTLP receiver, such as http://collector:4318; "" exports nothing.
	Endpoint string
	// Ratio is the share of traces that begin here and are sampled, 0 to 1. A client that samples its trace decides itself.
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
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(cfg.Ratio))),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", cfg.Service), attribute.String("service.version", cfg.Version),
		)),
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
