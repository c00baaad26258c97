package admin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/escrow/events"
	"github.com/rollcall-dev/rollcall/internal/escrow/watch"
	"github.com/rollcall-dev/rollcall/internal/testutil/chain/proxy"
)

// verify compares all that was read.
func (m *monitored) verify() *Verified {
	m.t.Helper()
	upto := uint64(0)
	v, err := m.admin().Verify(m.t.Context(), m.nodes(), 1, m.head()-depth, func(n uint64) { upto = n })
	require.NoError(m.t, err)
	require.Equal(m.t, m.head()-depth, upto)
	return v
}

func TestVerify_PublishedIsTheChains_Equal(t *testing.T) {
	m := newMonitored(t, 2)
	m.settle(m.factory)
	m.settle(m.factory)
	m.bury()
	m.read()
	v := m.verify()
	require.True(t, v.Equal())
	require.Equal(t, 10, v.Events)
	require.Empty(t, v.Differences)
	require.Len(t, v.Endpoints, 2)
	for _, e := range v.Endpoints {
		require.Equal(t, Endpoint{Endpoint: e.Endpoint, Events: 10}, e)
	}
}

// Messages that lack an event, have one with other arguments, or one that the chain does not have, are found.
func TestVerify_MessagesDiffer_MissingAndFalse(t *testing.T) {
	m := newMonitored(t, 2)
	escrow := m.settle(m.factory)
	m.bury()
	m.read()
	all := m.messages()
	require.Len(t, all, 5)
	_, err := m.db.Exec(t.Context(), `DELETE FROM processed_events WHERE event_id = $1`, all[2].EventID)
	require.NoError(t, err)
	_, err = m.db.Exec(t.Context(), `UPDATE processed_events SET message = replace(convert_from(message, 'UTF8'), '"amount":"0"', '"amount":"1"')::bytea WHERE event_id = $1`,
		all[0].EventID)
	require.NoError(t, err)
	_, err = m.db.Exec(t.Context(), `UPDATE processed_events SET message = replace(convert_from(message, 'UTF8'), $2, 'x')::bytea, event_id = 'x' WHERE event_id = $1`,
		all[3].EventID, all[3].EventID)
	require.NoError(t, err)
	v := m.verify()
	require.False(t, v.Equal())
	require.Equal(t, Comparison{Missing: 3, False: 2}, v.Comparison)
	require.Len(t, v.Differences, 5)
	kinds := map[string][]string{}
	for _, d := range v.Differences {
		require.Equal(t, escrow, d.Escrow)
		kinds[d.EventID] = append(kinds[d.EventID], d.Kind)
	}
	require.Equal(t, map[string][]string{
		all[0].EventID: {"false", "missing"}, all[2].EventID: {"missing"}, all[3].EventID: {"missing"}, "x": {"false"},
	}, kinds)
}

// One endpoint lies: the comparison says so, and the messages are right.
func TestVerify_OneEndpointLies_TheOthersDecide(t *testing.T) {
	m := newMonitored(t, 2)
	m.settle(m.factory)
	m.bury()
	m.read()
	m.proxies[0].SetRules(change(func(l []map[string]any) []map[string]any { return l[:len(l)/2] }))
	v := m.verify()
	require.True(t, v.Equal())
	require.Equal(t, 5, v.Events)
	require.Equal(t, []Comparison{{False: 3}, {}}, []Comparison{v.Endpoints[0].Comparison, v.Endpoints[1].Comparison})

	// It gives no list: the other one proves its own by the receipts of blocks that both have.
	m.proxies[0].SetRules(proxy.Rule{Methods: []string{"eth_getLogs"}, Fault: proxy.Fault{Kind: proxy.Reject}})
	v = m.verify()
	require.True(t, v.Equal())
	require.NotEmpty(t, v.Endpoints[0].Error)
	require.Empty(t, v.Endpoints[1].Error)

	// It does not answer: the other one may be on a branch of its own.
	m.proxies[0].SetRules(proxy.Rule{Fault: proxy.Fault{Kind: proxy.Reject}})
	_, err := m.admin().Verify(t.Context(), m.nodes(), 1, m.head()-depth, func(uint64) {})
	require.ErrorIs(t, err, watch.ErrUnconfirmed)
}

func TestVerify_NotReadable_Fails(t *testing.T) {
	m := newMonitored(t, 2)
	m.settle(m.factory)
	m.bury()
	m.read()
	a, last := m.admin(), m.head()-depth
	for name, c := range map[string]struct {
		from, to uint64
		want     string
	}{
		"before the start":  {0, 1, "blocks 1 to"},
		"after the cursor":  {1, last + 1, "have been read and are final"},
		"not a range":       {2, 1, "have been read and are final"},
		"too many, in time": {1, last + MaxVerify, "have been read and are final"},
	} {
		_, err := a.Verify(t.Context(), m.nodes(), c.from, c.to, func(uint64) {})
		require.ErrorIs(t, err, ErrRange, name)
		require.ErrorContains(t, err, c.want, name)
	}
	other := m.nodes()
	other.Events = new(events.Set)
	_, err := a.Verify(t.Context(), other, 1, last, func(uint64) {})
	require.ErrorIs(t, err, ErrEvents)

	for _, p := range m.proxies {
		p.SetRules(proxy.Rule{Methods: []string{"eth_getLogs"}, Fault: proxy.Fault{Kind: proxy.Reject}})
	}
	a.pause = time.Millisecond
	_, err = a.Verify(t.Context(), m.nodes(), 1, last, func(uint64) {})
	require.ErrorIs(t, err, watch.ErrUnconfirmed)
}

// An escrow's logs count from its creation on, as they did when they were read.
func TestVerify_LogsBeforeTheCreation_AreNoEvents(t *testing.T) {
	m := newMonitored(t, 1)
	m.settle(m.factory)
	m.bury()
	m.read()
	_, err := m.db.Exec(t.Context(), `UPDATE escrow_accounts SET created = created + 100`)
	require.NoError(t, err)
	after := m.messages()[1].BlockNumber + 1
	v, err := m.admin().Verify(t.Context(), m.nodes(), after, m.head()-depth, func(uint64) {})
	require.NoError(t, err)
	require.Zero(t, v.Events)
	require.Equal(t, Comparison{False: 3}, v.Comparison)
}
