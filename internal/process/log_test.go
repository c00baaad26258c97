package process

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/platform/tracing"
)

// The error that ends a role is its last log line, even while parts of it still run.
func TestLogger_Failure_IsTheLastLine(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"json": `"msg":"role failed","err":"the disk is full"}`, "text": `msg="role failed" err="the disk is full"`} {
		var out bytes.Buffer
		log, failure := (&LogFlags{Level: "info", Format: format}).Logger(&out)
		component := log.With("component", "health")
		component.Info("health check failed")
		var err error
		failure("role failed", &err)
		component.Info("health check failed")
		err = errors.New("the disk is full")
		failure("role failed", &err)
		require.True(t, IsLogged(err))
		component.Error("health check failed")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		require.Len(t, lines, 3)
		require.Contains(t, lines[2], want)
	}
	require.False(t, IsLogged(errors.New("the disk is full")))
}

// A line of a request has the ids of its trace, also where its logger has attributes or a group.
func TestLogger_ContextHasASpan_LogsItsIDs(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, _ := (&LogFlags{Level: "info", Format: "json"}).Logger(&out)
	log = log.With("component", "api")
	ctx := tracing.Extract(t.Context(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	const ids = `"trace_id":"0af7651916cd43dd8448eb211c80319c","span_id":"b7ad6b7169203331"}`
	line := func(write func(context.Context), ctx context.Context) string {
		out.Reset()
		write(ctx)
		return strings.TrimSpace(out.String())
	}
	plain := func(ctx context.Context) { log.InfoContext(ctx, "request not served", "code", 503) }
	require.Regexp(t, `"component":"api","code":503,`+ids+`$`, line(plain, ctx))
	require.NotContains(t, line(plain, t.Context()), "trace_id")
	grouped := func(ctx context.Context) { log.WithGroup("request").InfoContext(ctx, "request not served") }
	require.Contains(t, line(grouped, ctx), ids)
}
