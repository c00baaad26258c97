package cli

import (
	"net/url"
	"slices"
	"strings"

	"github.com/rollcall-dev/rollcall/internal/evm"
)

// DistinctNodes returns the nodes of a chain that may confirm each other, with the first of the WebSockets as source of heads. URLs of one
// host are of one node, or of one provider, so only the first of them is called: those with the same port, and one by HTTP beside one by
// WebSocket. maxRPS has a number for each URL, or one for all, or none.
func DistinctNodes(urls []string, maxRPS []int) evm.Config {
	var cfg evm.Config
	if len(maxRPS) < 2 {
		cfg.MaxRPS = maxRPS
	}
	type host struct {
		name, port string
		ws         bool
	}
	var hosts []host
	for i, raw := range urls {
		ws := strings.HasPrefix(raw, "ws")
		if ws && cfg.Subscribe == "" {
			cfg.Subscribe = raw
		}
		if u, err := url.Parse(raw); err == nil { // evm.Open reports an error
			port := u.Port()
			if port == "" {
				port = map[string]string{"http": "80", "ws": "80", "https": "443", "wss": "443"}[u.Scheme]
			}
			h := host{strings.ToLower(u.Hostname()), port, ws}
			if slices.ContainsFunc(hosts, func(o host) bool { return o.name == h.name && (o.port == h.port || o.ws != h.ws) }) {
				continue
			}
			hosts = append(hosts, h)
		}
		cfg.Endpoints = append(cfg.Endpoints, raw)
		if len(maxRPS) > 1 {
			cfg.MaxRPS = append(cfg.MaxRPS, maxRPS[i])
		}
	}
	return cfg
}
