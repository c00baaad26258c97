package webhook

import (
	"encoding/json"
	"strings"

	"github.com/jackc/pgx/v5"
)

// PlainSource returns the Source of a table whose rows hold the complete payloads, in a column of type jsonb: a late or replayed
// webhook does not depend on later changes. All its deliveries have one event, and are of the transaction that is their subject.
//
// The owner writes a row for each target, in the statement or the database transaction of the change:
//
//	WITH changed AS (
//		UPDATE my_things SET status = $2, revision = revision + 1 WHERE id = $3 RETURNING id, status, revision)
//	INSERT INTO my_deliveries (target, subject, revision, payload)
//	SELECT target, c.id, c.revision, jsonb_build_object('id', c.id, 'status', c.status, 'revision', c.revision)
//	FROM changed c CROSS JOIN unnest($1::text[]) AS target
//
// The other columns have defaults. Deliveries of one subject and target are ordered by revision. The owner increases the
// revision while it locks the subject, as UPDATE does; a higher revision that commits first could be delivered first. After
// the commit the owner may call [Deliverer.Notify].
//
// Postgres stores jsonb without the text's spaces and order of keys, and with all digits of its numbers.
func PlainSource(table, event string) Source {
	return Source{
		Table: table, Event: "'" + strings.ReplaceAll(event, "'", "''") + "'", Transaction: "c.subject", Columns: "c.payload",
		Scan: func(row pgx.CollectableRow) (Payload, error) {
			var payload json.RawMessage
			err := row.Scan(&payload)
			return func() (any, error) { return payload, nil }, err
		},
	}
}
