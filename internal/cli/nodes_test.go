package cli_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/cli"
	"github.com/rollcall-dev/rollcall/internal/evm"
)

// URLs of one host do not confirm each other.
func TestDistinctNodes_OneHost_OneNode(t *testing.T) {
	t.Parallel()
	for urls, want := range map[string]evm.Config{
		"https://a/k https://b/k":                              {Endpoints: []string{"https://a/k", "https://b/k"}, MaxRPS: []int{1, 2}},
		"https://a/k wss://a/ws":                               {Endpoints: []string{"https://a/k"}, MaxRPS: []int{1}, Subscribe: "wss://a/ws"},
		"https://A/1 https://a:443/2 https://b":                {Endpoints: []string{"https://A/1", "https://b"}, MaxRPS: []int{1, 3}},
		"http://geth:8545 ws://geth:8546 http://geth:9545":     {Endpoints: []string{"http://geth:8545", "http://geth:9545"}, MaxRPS: []int{1, 3}, Subscribe: "ws://geth:8546"},
		"ws://127.0.0.1:1 ws://127.0.0.1:2 http://127.0.0.1:2": {Endpoints: []string{"ws://127.0.0.1:1", "http://127.0.0.1:2"}, MaxRPS: []int{1, 3}, Subscribe: "ws://127.0.0.1:1"},
		"wss://a/ws https://a/k https://b/k":                   {Endpoints: []string{"https://a/k", "https://b/k"}, MaxRPS: []int{2, 3}, Subscribe: "wss://a/ws"},
		"https://a\x7f/ https://b":                             {Endpoints: []string{"https://a\x7f/", "https://b"}, MaxRPS: []int{1, 2}},
	} {
		all := strings.Fields(urls)
		require.Equal(t, want, cli.DistinctNodes(all, []int{1, 2, 3}[:len(all)]), "%q", urls)
		for _, maxRPS := range [][]int{nil, {5}} {
			want.MaxRPS = maxRPS
			require.Equal(t, want, cli.DistinctNodes(all, maxRPS), "%q", urls)
		}
	}
}
