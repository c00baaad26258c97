//go:build soak

package crashtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Reorganizations of 3, 20, 70 and 200 blocks, with more hits. Relayers are killed while they take transactions back
// and while they send them again, and the operator's command half-way. One of 20 blocks removes final transactions and
// leaves the anchor.
func TestSoakReorganization(t *testing.T) {
	for i, r := range []reorganization{
		{depth: 3, times: 6, hits: 150, kills: true},
		{depth: 20, times: 3, hits: 300, kills: true},
		{depth: 70, times: 3, hits: 500, kills: true, interrupted: true},
		{depth: 70, times: 2, hits: 300, interrupted: true, shorter: true},
		{depth: 200, times: 2, hits: 800, kills: true, interrupted: true},
	} {
		t.Run(fmt.Sprintf("%d-%d", i, r.depth), func(t *testing.T) {
			sc := open(t, setting{keys: 8, relayers: 4, inFlight: 1000, confirmations: finalDepth, geth: archive()})
			sc.underReorganization(r)
		})
	}
}

// geth forgets its last blocks and their transactions while relayers send, and no longer branch replaces them at once.
func TestSoakRewind(t *testing.T) {
	sc := open(t, setting{keys: 2, relayers: 2, inFlight: 64, confirmations: 8, geth: pool(1000)})
	l := sc.load(150)
	l.clients, l.pace = 8, 60*time.Millisecond
	done := make(chan struct{})
	go func() { defer close(done); l.run(t.Context(), sc.random) }()
	v := sc.truth()
	for depth := uint64(2); depth <= 4; depth++ {
		began, err := v.chain.BlockNumber(t.Context())
		require.NoError(t, err)
		eventually(t, patience, func() bool {
			now, err := v.chain.BlockNumber(t.Context())
			return err == nil && now >= began+4
		}, "no blocks")
		now, err := v.chain.BlockNumber(t.Context())
		require.NoError(t, err)
		sc.node.SetHead(now - depth)
	}
	<-done
	v.settled(patience)
	stored := v.executed(l.hits)
	v.keys(false)
	v.records()
	t.Logf("%d hits mined; %s", stored, v.extras())
}
