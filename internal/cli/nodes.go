package cli

import (
	"net/url"
	"slices"
	"strings"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

// DistinctNodes returns the nodes of a chain that may confirm each other, with the first of the WebSockets as source of heads. Two URLs are of
// one node if they have the same host and port, or if one is by HTTP, and one by WebSocket of the same host. One of them is called, by HTTP if
// possible. maxRPS has a number for each URL, or one for all, or none.
func DistinctNodes(urls []string, maxRPS []int) evm.Config {
	var cfg evm.Config
	if len(maxRPS) < 2 {
		cfg.MaxRPS = maxRPS
	}
	type node struct {
		host, port string
		ws         bool
		at         int // its endpoint
	}
	var nodes []node
	for i, raw := range urls {
		ws := strings.HasPrefix(raw, "ws")
		if ws && cfg.Subscribe == "" {
			cfg.Subscribe = raw
		}
		if u, err := url.Parse(raw); err == nil { // evm.Open reports an error
			n := node{strings.ToLower(u.Hostname()), u.Port(), ws, len(cfg.Endpoints)}
			if n.port == "" {
				n.port = map[string]string{"http": "80", "ws": "80", "https": "443", "wss": "443"}[u.Scheme]
			}
			same := slices.IndexFunc(nodes, func(o node) bool { return o.host == n.host && o.port == n.port })
			if same < 0 {
				same = slices.IndexFunc(nodes, func(o node) bool { return o.host == n.host && o.ws != n.ws })
			}
			if same >= 0 {
				if o := &nodes[same]; o.ws && !ws {
					cfg.Endpoints[o.at], o.ws = raw, false
					if len(maxRPS) > 1 {
						cfg.MaxRPS[o.at] = maxRPS[i]
					}
				}
				continue
			}
			nodes = append(nodes, n)
		}
		cfg.Endpoints = append(cfg.Endpoints, raw)
		if len(maxRPS) > 1 {
			cfg.MaxRPS = append(cfg.MaxRPS, maxRPS[i])
		}
	}
	return cfg
}
