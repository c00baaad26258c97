package crashtest

import (
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/testutil/chain/contracts"
)

func TestRestored_StoreAndChain_AreCompared(t *testing.T) {
	t.Parallel()
	call, other := common.Hash{1}, common.Hash{2}
	at := func(second int) time.Time { return historyStart.Add(time.Duration(second) * time.Second) }
	row := func(id, hash string, accepted int) stored {
		return stored{ID: id, Status: "confirmed", Hash: common.HexToHash(hash).Hex(), CreatedAt: at(accepted), Data: contracts.Hit(call)}
	}
	executed := func(block int) execution { return execution{id: call, block: uint64(block), time: at(block)} }
	// Block n is made in second n. The dump is made in second 4, and restored in second 8.
	is := &restored{
		dump: map[string]dumped{"sent": {open: true}, "queued": {queued: true, open: true}},
		signed: map[common.Hash]string{
			common.HexToHash("0x1"): "sent", common.HexToHash("0x2"): "queued", common.HexToHash("0x3"): "unknown", common.HexToHash("0x4"): "sent",
		},
		head: 8,
	}
	for _, c := range []struct {
		name           string
		rows           []stored
		executed       map[string]execution
		again, unknown int
		wrong          string // "" for none
	}{
		{"sent once", []stored{row("sent", "0x1", 1)}, map[string]execution{"0x1": executed(5)}, 0, 0, ""},
		{"sent with bytes from after the dump", []stored{row("sent", "0x4", 1)}, map[string]execution{"0x4": executed(5)}, 0, 0, ""},
		{"queued, by bytes from before the restore", []stored{row("queued", "0x2", 1)}, map[string]execution{"0x2": executed(6)}, 0, 0, ""},
		{"queued, again", []stored{row("queued", "0x9", 1)}, map[string]execution{"0x2": executed(6), "0x9": executed(9)}, 1, 0, ""},
		{"unknown", nil, map[string]execution{"0x3": executed(6)}, 0, 1, ""},
		{"new", []stored{row("new", "0x9", 9)}, map[string]execution{"0x9": executed(9)}, 0, 0, ""},
		{"not final", []stored{{ID: "sent", Status: "mined"}}, nil, 0, 0, "is mined"},
		{"not executed", []stored{row("sent", "0x1", 1)}, nil, 0, 0, "is not executed"},
		{"another call", []stored{row("sent", "0x1", 1)}, map[string]execution{"0x1": {id: other, block: 5, time: at(5)}}, 0, 0, "is another call"},
		{"one hash for two", []stored{row("new", "0x9", 9), row("newer", "0x9", 9)}, map[string]execution{"0x9": executed(9)}, 0, 0, "are confirmed with"},
		{"hash of another one", []stored{row("new", "0x3", 5)}, map[string]execution{"0x3": executed(9)}, 0, 0, "was signed for unknown"},
		{"mined before it was accepted", []stored{row("queued", "0x9", 3)}, map[string]execution{"0x9": executed(2)}, 0, 0, "was mined before"},
		{"mined before the restore, and accepted after it", []stored{row("new", "0x9", 8)}, map[string]execution{"0x9": executed(8)}, 0, 0, "was mined before"},
		{"sent twice", []stored{row("sent", "0x1", 1)}, map[string]execution{"0x1": executed(5), "0x4": executed(6)}, 0, 0, "had a nonce in the dump"},
		{"new, twice", []stored{row("new", "0x9", 9)}, map[string]execution{"0x9": executed(9), "0x8": executed(9)}, 0, 0, "no row has it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			by := map[common.Hash]execution{}
			for hash, e := range c.executed {
				by[common.HexToHash(hash)] = e
			}
			wrong, again, unknown := is.contradictions(c.rows, by)
			if c.wrong == "" {
				require.Empty(t, wrong)
				require.Equal(t, [2]int{c.again, c.unknown}, [2]int{again, unknown})
			} else {
				require.Contains(t, strings.Join(wrong, "\n"), c.wrong)
			}
		})
	}
}
