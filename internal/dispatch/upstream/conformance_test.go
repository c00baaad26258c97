package upstream_test

import (
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"github.com/rollcall-dev/rollcall/internal/dispatch/upstream/upstreamtest"
)

var receiver = common.HexToAddress("0x00000000000000000000000000000000000000ff")

func TestConformance_StandIns(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]upstreamtest.Options{
		"as OpenZeppelin's": {}, "newest first": {NewestFirst: true}, "as this project's": {ID: "pool", Scope: "5c09e"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := upstreamtest.Start(t, o)
			upstreamtest.Conformance(t, upstreamtest.Target{URL: r.URL(), Key: upstreamtest.Key, To: receiver, Idempotent: o.Scope != ""})
		})
	}
}
