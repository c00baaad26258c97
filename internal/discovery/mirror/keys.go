package mirror

import "strings"

// Keys returns the names of the mirror's keys. The prefix is put before each name unchanged. For one slot of a Redis
// Cluster it must contain a {hash tag}.
type Keys struct{ Prefix string }

// Active returns the key of the set of a kind's live services: relayer:active for relayers.
func (k Keys) Active(kind string) string { return k.Prefix + kind + ":active" }

// Status returns the key of a service's hash: relayer:status:3 for oz-relayer-3, relayer:status:svc:edge for edge.
func (k Keys) Status(id string) string {
	if n, ok := relayerNumber(id); ok {
		return k.Prefix + "relayer:status:" + n
	}
	return k.Prefix + "relayer:status:svc:" + id
}

// Services returns the key of the set of ids with a status hash, so that a later leader finds the hashes to delete.
func (k Keys) Services() string { return k.Prefix + "relayer:services" }

// Meta returns the key of the hash that holds the fence.
func (k Keys) Meta() string { return k.Prefix + "relayer:meta" }

// Events returns the channel on which changes are published.
func (k Keys) Events() string { return k.Prefix + "relayer:events" }

// relayerNumber returns the N of oz-relayer-N. It rejects leading zeros, because two ids would share a key.
func relayerNumber(id string) (string, bool) {
	n, ok := strings.CutPrefix(id, "oz-relayer-")
	if !ok || n == "" || n[0] == '0' && n != "0" || strings.Trim(n, "0123456789") != "" {
		return "", false
	}
	return n, true
}
