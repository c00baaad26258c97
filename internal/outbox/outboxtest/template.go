package outboxtest

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/outbox"
)

// RequireTemplate requires that a domain's table has all columns, indexes and options of [outbox.Table.Schema].
func RequireTemplate(t *testing.T, db *pgxpool.Pool, table outbox.Table) {
	t.Helper()
	template := table
	template.Name = "template"
	_, err := db.Exec(t.Context(), template.Schema())
	require.NoError(t, err)
	parts := func(table string) []string {
		rows, err := db.Query(t.Context(), `SELECT replace(part, $1, 'template') FROM (
			SELECT concat_ws(' ', column_name, data_type, collation_name, is_nullable, CASE WHEN column_name <> 'id' THEN column_default END) AS part
				FROM information_schema.columns WHERE table_name = $1
			UNION ALL SELECT indexdef FROM pg_indexes WHERE tablename = $1
			UNION ALL SELECT unnest(reloptions) FROM pg_class WHERE relname = $1) AS parts`, table)
		require.NoError(t, err)
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return list
	}
	want := parts("template")
	require.Greater(t, len(want), 25)
	require.Subset(t, parts(table.Name), want)
}
