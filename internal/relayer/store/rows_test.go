package store

import (
	"encoding/json"
	"math/big"
	"reflect"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// Each column of a table is in the struct of its rows, and the reverse. Amounts are marked, and nulls can be read.
func TestColumns_AreThoseOfTheTables(t *testing.T) {
	t.Parallel()
	s, _ := setup(t, 1)
	for table, columns := range map[string][]relayer.Column{
		"relayer_txs":      relayer.Columns[relayer.TransactionRow](""),
		"relayer_attempts": relayer.Columns[relayer.AttemptRow](""),
	} {
		byName := map[string]relayer.Column{}
		for _, c := range columns {
			require.NotContains(t, byName, c.Name)
			byName[c.Name] = c
		}
		rows, err := s.db.Query(t.Context(), `SELECT column_name, data_type = 'numeric', is_nullable = 'YES' FROM information_schema.columns
			WHERE table_schema = current_schema() AND table_name = $1`, table)
		require.NoError(t, err)
		for rows.Next() {
			var name string
			var numeric, nullable bool
			require.NoError(t, rows.Scan(&name, &numeric, &nullable))
			c, ok := byName[name]
			require.True(t, ok, "the struct lacks %s.%s", table, name)
			require.Equal(t, numeric, c.Numeric, name)
			is := c.Field.Type
			require.Equal(t, nullable, is.Kind() == reflect.Pointer || is == reflect.TypeFor[relayer.Timestamp]() && name != "created_at" && name != "updated_at", name)
			delete(byName, name)
		}
		require.NoError(t, rows.Err())
		require.Empty(t, byName, "%s has no such columns", table)
	}
}

// A delivery keeps the contents that a transaction had before it was replaced, in the form of a row.
func TestReplace_Contents_AreKeptForDeliveries(t *testing.T) {
	t.Parallel()
	s, limits := setup(t, 1, "here")
	limits.Cap = 1
	full := newTx(s)
	full.Request = relayer.Request{
		To: new(common.HexToAddress("0xAb")), Value: new(big.Int).Lsh(big.NewInt(1), 200), Data: []byte{0, 255}, GasLimit: 4, GasPrice: big.NewInt(5),
		MaxFee: big.NewInt(6), MaxPriorityFee: big.NewInt(7), Speed: relayer.Fastest, ValidUntil: time.Now().Add(time.Hour).Truncate(time.Microsecond),
	}
	empty := newTx(s)
	empty.Request = relayer.Request{Value: new(big.Int), Data: []byte{}}
	accept(t, s, limits, newTx(s))
	for _, d := range []*NewTransaction{full, empty} {
		tx := accept(t, s, limits, d)[0]
		for _, r := range []*NewTransaction{empty, full, empty} {
			require.NoError(t, s.Replace(t.Context(), &Replacement{ID: tx.ID, Request: r.Request}))
			is := read(t, s, tx).Request
			require.True(t, is.ValidUntil.Equal(r.ValidUntil))
			is.ValidUntil, is.Metadata = r.ValidUntil, relayer.Metadata{}
			require.Equal(t, r.Request, is)
		}
		rows, err := s.db.Query(t.Context(), `SELECT contents::text FROM relayer_webhooks WHERE about = $1 AND contents IS NOT NULL ORDER BY revision`, tx.ID)
		require.NoError(t, err)
		var kept []relayer.Request
		for rows.Next() {
			var text string
			require.NoError(t, rows.Scan(&text))
			row := full.row()
			require.NoError(t, json.Unmarshal([]byte(text), row))
			kept = append(kept, row.Transaction().Request)
		}
		require.Len(t, kept, 2)
		for i, want := range []relayer.Request{empty.Request, full.Request} {
			require.True(t, kept[i].ValidUntil.Equal(want.ValidUntil))
			kept[i].ValidUntil = want.ValidUntil
			require.Equal(t, want, kept[i])
		}
	}
}

// row returns the row of a new transaction.
func (t *NewTransaction) row() *relayer.TransactionRow {
	return (&relayer.Transaction{Request: t.Request}).Row()
}
