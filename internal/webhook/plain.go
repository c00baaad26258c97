package webhook

import (
	"encoding/json"
	"strings"

	"github.com/jackc/pgx/v5"
)

// PlainTable returns the DDL of a table for [PlainSource], for the migration that creates it. A row holds the complete
// payload, so a late or replayed webhook does not depend on later changes.
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
func PlainTable(name string) string {
	return strings.ReplaceAll(plainTable, "{name}", name)
}

const plainTable = `CREATE TABLE {name} (
    -- Columns that change come first: Postgres logs an update in the same page from the first to the last byte that differs.
    -- A claim changes no column of an index.
    claimed_until   timestamptz NOT NULL DEFAULT '-infinity',
    claimant        uuid,                               -- the process that has claimed the delivery
    attempts        integer     NOT NULL DEFAULT 0,     -- claims so far
    retry_until     timestamptz,                        -- counted from the first claim; null before
    state           text        NOT NULL DEFAULT 'due' CHECK (state IN ('due', 'delivered', 'dead_letter')),
    delivered_at    timestamptz,
    last_error      text        NOT NULL DEFAULT '',
    next_at         timestamptz NOT NULL DEFAULT now(), -- of a due one: it is not claimed before

    -- The webhook's id, the same in each attempt: a UUID of version 7, whose time decides when the row is purged.
    id              uuid        PRIMARY KEY DEFAULT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
                        || right(replace(gen_random_uuid()::text, '-', ''), 19))::uuid,
    subject         uuid        NOT NULL,               -- deliveries of one subject are ordered
    created_at      timestamptz NOT NULL DEFAULT now(),
    target          text        NOT NULL,               -- the name of a configured target
    revision        integer     NOT NULL,
    payload         jsonb       NOT NULL,               -- as it is sent

    UNIQUE (subject, target, revision)
) WITH (
    -- A claim writes a second version of each row into its page.
    fillfactor = 45,
    -- Dead rows are few against a long history of delivered ones, and claims pass by all of them.
    autovacuum_vacuum_scale_factor = 0.02
);
-- Deliveries that may be claimed. The queries of a claim can use no other index.
CREATE INDEX {name}_due ON {name} (target, next_at) WHERE state = 'due';
CREATE INDEX {name}_dead ON {name} (created_at) WHERE state = 'dead_letter';
`

// PlainSource returns the Source of a table that [PlainTable] created. All its deliveries have one event, and are of the
// transaction that is their subject.
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
