package tracker

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer/sender"
	"github.com/rollcall-dev/rollcall/internal/relayer/store"
)

// viewOf is a view whose endpoint alone is asked for.
type viewOf struct {
	View

	endpoint string
}

func (v viewOf) Endpoint() string { return v.endpoint }

// counted returns the report on a key by endpoints and their counts.
func counted(counts map[string]uint64) report {
	var all []evm.Counts
	for endpoint, n := range counts {
		all = append(all, evm.Counts{Endpoint: endpoint, Mined: []uint64{n}})
	}
	return reportsOf(all, 0, false)
}

// The round's endpoint reports the lowest count, and then does not respond. The dispute must not end when the endpoint that
// reported the highest one agrees with itself.
func TestLowestOf_RoundsEndpointIsLowest_HasToAgree(t *testing.T) {
	t.Parallel()
	tr := &Tracker{disputed: map[common.Address]dispute{}, cfg: Config{Log: slog.New(slog.DiscardHandler), StuckAfter: time.Minute}}
	key := common.Address{1}
	on := func(endpoint string) *round { return &round{Tracker: tr, view: viewOf{endpoint: endpoint}} }
	require.EqualValues(t, 5, on("a").lowestOf(key, 5, counted(map[string]uint64{"b": 7})))
	require.EqualValues(t, 5, on("b").lowestOf(key, 7, counted(map[string]uint64{"b": 7})))
	require.EqualValues(t, 7, on("b").lowestOf(key, 7, counted(map[string]uint64{"a": 7, "b": 7})))
	require.Empty(t, tr.disputed)
}

// An endpoint reports too low a count once, and does not respond any more. The others decide after StuckAfter.
func TestLowestOf_LowestDoesNotRespondAgain_OthersDecide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := &Tracker{disputed: map[common.Address]dispute{}, cfg: Config{Log: slog.New(slog.DiscardHandler), StuckAfter: time.Minute}}
		key := common.Address{1}
		r := &round{Tracker: tr, view: viewOf{endpoint: "a"}}
		require.EqualValues(t, 0, r.lowestOf(key, 500, counted(map[string]uint64{"a": 500, "b": 500, "c": 0})))
		<-time.After(time.Minute - 1)
		require.EqualValues(t, 0, r.lowestOf(key, 500, counted(map[string]uint64{"a": 500, "b": 500})))
		<-time.After(1)
		require.EqualValues(t, 500, r.lowestOf(key, 500, counted(map[string]uint64{"a": 500, "b": 500})))
		require.Empty(t, tr.disputed)
	})
}

// The fees are unknown everywhere. The process releases the lease less often each time, although it has no fault right after
// it has taken the lease again.
func TestSendFault_NodesNeverReportFees_ReleasesLessOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const term = time.Second
		tr := &Tracker{cfg: Config{Term: term, Sender: sender.New(sender.Config{Log: slog.New(slog.DiscardHandler)})}}
		var releases []time.Time
		for len(releases) < 5 {
			tr.taken = time.Now()
			tr.noteFees(nil)
			require.NoError(t, tr.sendFault(), "it has not read the fees yet")
			for tr.sendFault() == nil {
				<-time.After(term / 4)
				tr.noteFees(errors.New("daily request count exceeded"))
			}
			tr.declined, tr.declines = time.Now(), tr.declines+1
			releases = append(releases, time.Now())
		}
		for i, terms := range []time.Duration{12, 24, 48, 96} {
			require.InDelta(t, terms*term, releases[i+1].Sub(releases[i]), float64(term))
		}

		// The nodes report fees again.
		tr.taken = time.Now()
		tr.noteFees(nil)
		<-time.After(faultTerms * term)
		require.NoError(t, tr.sendFault())
		require.Zero(t, tr.declines)
	})
}

// The nodes' first blocks decide which chain is recorded, if a majority has the same one.
func TestCommonGenesis(t *testing.T) {
	t.Parallel()
	kinds := map[byte]evm.Anchor{
		'a': {Genesis: common.Hash{1}},
		'b': {Genesis: common.Hash{2}},
		'p': {}, // has pruned its first block
		'w': {Err: &evm.WrongChainError{}},
		's': {Err: context.DeadlineExceeded}, // silent
	}
	for _, test := range []struct {
		nodes string
		late  bool
		want  common.Hash
		err   string
	}{
		{nodes: "a", want: common.Hash{1}},
		{nodes: "baa", want: common.Hash{1}},
		{nodes: "wap", want: common.Hash{1}},
		{nodes: "saa", want: common.Hash{1}},
		{nodes: "sa", err: errNotChecked.Error()}, // the silent node may be right
		{nodes: "sa", late: true, want: common.Hash{1}},
		{nodes: "ss", late: true, err: errNotChecked.Error()},
		{nodes: "ww", late: true, err: errNotChecked.Error()},
		{nodes: "p", late: true, err: errNotChecked.Error()},
		{nodes: "ab", err: "no majority decides: 0x01"},
		{nodes: "saab", late: true, want: common.Hash{1}},
		{nodes: "saab", err: "no majority decides"},
		{nodes: "sab", late: true, err: "0x0200000000000000000000000000000000000000000000000000000000000000 at 2; take those"},
	} {
		var anchors []evm.Anchor
		for i, kind := range []byte(test.nodes) {
			anchor := kinds[kind]
			anchor.Endpoint = strconv.Itoa(i)
			anchors = append(anchors, anchor)
		}
		genesis, err := commonGenesis(anchors, test.late)
		require.Equal(t, test.want, genesis, test.nodes)
		if test.err == "" {
			require.NoError(t, err, test.nodes)
		} else {
			require.ErrorContains(t, err, test.err, test.nodes)
		}
	}
}

// Balances are read in complete rounds. Allocations must not ignore them before the next one, also if it fails once.
func TestIdlePause_ManyKeys_BalancesStayValid(t *testing.T) {
	t.Parallel()
	for _, keys := range []int{1, 8, 22, 35, 1000, 1_000_000} {
		require.LessOrEqual(t, idlePause(keys, time.Second), store.BalanceAge*3/4, "%d keys", keys)
	}
	require.Equal(t, 9*time.Second, idlePause(1, time.Second))
	require.Equal(t, 39*time.Second, idlePause(21, time.Second), "two calls a second")
}
