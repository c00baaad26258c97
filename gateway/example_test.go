package gateway_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/gateway"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// ExampleGateway registers the process itself, and keeps it registered while it runs.
func ExampleGateway() {
	register := func(ctx context.Context) error {
		g, err := gateway.New(gateway.Config{
			ClientConfig: gateway.ClientConfig{Coordinators: []string{"coordinator-1:7400", "coordinator-2:7400"}},
			ID:           "relayer-1", // always the same, and this process's only
			Source: gateway.Static(&rollcallv1.Service{
				Id: "oz-relayer-1", Kind: "relayer",
				WorkerRef: &rollcallv1.WorkerRef{Url: "http://10.0.0.5:3000"},
			}),
		})
		if err != nil {
			return err
		}
		return g.Run(ctx) // until ctx ends
	}
	_ = register
}

// The README's example must match the code that is compiled here.
func TestExample_Readme_ShowsTheCompiledCode(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(page), "```go\n")
	require.True(t, ok)
	shown, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	unindented := strings.ReplaceAll(string(source), "\n\t\t", "\n")
	require.Contains(t, unindented, "\n"+shown)
}
