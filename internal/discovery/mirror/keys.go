package mirror

import "strings"

// Keys names what stands in Redis. The prefix is put before each name as it is; to keep all of them in one slot of
// a Redis Cluster it must hold a {hash tag}.
type Keys struct{ Prefix string }

// Active is the set of the live services of a kind: relayer:active for relayers.
func (k Keys) Active(kind string) string { return k.Prefix + kind + ":active" }

// Status is the hash of one service: relayer:status:3 for oz-relayer-3, relayer:status:svc:edge for edge.
func (k Keys) Status(id string) string {
	if n, ok := relayerNumber(id); ok {
		return k.Prefix + "relayer:status:" + n
	}
	return k.Prefix + "relayer:status:svc:" + id
}

// Services is the set of the ids that have a status hash, so that a later leader finds those to delete.
func (k Keys) Services() string { return k.Prefix + "relayer:services" }

// Meta is the hash that carries the fence.
func (k Keys) Meta() string { return k.Prefix + "relayer:meta" }

// Events is the channel on which changes are published.
func (k Keys) Events() string { return k.Prefix + "relayer:events" }

// relayerNumber is the N of oz-relayer-N. A number with leading zeros is none, or two ids would share a key.
func relayerNumber(id string) (string, bool) {
	n, ok := strings.CutPrefix(id, "oz-relayer-")
	if !ok || n == "" || n[0] == '0' && n != "0" || strings.Trim(n, "0123456789") != "" {
		return "", false
	}
	return n, true
}
