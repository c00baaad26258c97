package outbox

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Table describes a table of entries. All strings are SQL from the domain's code, and no part of them comes from outside.
type Table struct {
	// Name is the table's name: lower-case letters, digits and underscores, at most 40 characters.
	Name string
	// DeadBlocks makes a dead entry block the later entries of its subject, until an operator replays or drops it. [Table.Schema]
	// depends on it. Default: the later entries are worked on.
	DeadBlocks bool
	// KeepDone keeps finished entries, until [Outbox.Purge] deletes them. Default: they are deleted at once.
	KeepDone bool
	// ClaimsWaitForDisk makes a claim wait until it is on the server's disk, and with it the transaction that inserted the entry. A
	// domain needs it if that transaction did not wait itself. Default: a claim that Postgres loses in a crash is repeated.
	ClaimsWaitForDisk bool
	// Columns are expressions, separated by commas, that Scan reads from a claimed row. The row is named e, and may have more
	// columns than the template. Default: none.
	Columns string
	// Joins follow the claimed rows in FROM. Default: none. Each must be a LEFT JOIN LATERAL of at most one row, found by an index:
	// a claim's plan neither sorts nor hashes, and a claim of nothing is one row of nulls.
	Joins string
	// Scan reads the values of Columns for [Work.Data]. It does no more than that, because an error fails the whole turn.
	Scan func(pgx.CollectableRow) (any, error)
}

// maxName leaves room for the suffixes of the indexes in Postgres's 63 bytes.
const maxName = 40

var validName = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// validate returns all problems, joined.
func (t Table) validate() error {
	var errs []error
	if !validName.MatchString(t.Name) || len(t.Name) > maxName {
		errs = append(errs, fmt.Errorf("outbox: table name %q: use lower-case letters, digits and underscores, at most %d characters", t.Name, maxName))
	}
	if (t.Columns == "") != (t.Scan == nil) {
		errs = append(errs, fmt.Errorf("outbox: table %s: set Columns and Scan together", t.Name))
	}
	return errors.Join(errs...)
}

// unfinished is the condition for the states that block later entries of a subject.
func (t Table) unfinished() string {
	if t.DeadBlocks {
		return `state IN ('waiting', 'dead')`
	}
	return `state = 'waiting'`
}

// Schema returns the statements of a migration that creates the table. A domain copies them into its migrations, and may add
// columns and indexes. It must not add a column that a claim or a result changes to an index, because these updates are cheap only
// without one.
func (t Table) Schema() string {
	return t.named(schema)
}

// named returns SQL with the table's name, and its condition of unfinished entries.
func (t Table) named(sql string) string {
	return strings.NewReplacer("$name", t.Name, "$unfinished", t.unfinished()).Replace(sql)
}

const schema = `-- Numbers of entries and of claims.
CREATE SEQUENCE $name_numbers;

-- Durable work, as package outbox documents it.
CREATE TABLE $name (
    -- Columns that change come first: Postgres logs an update in the same page from the first to the last byte that differs.
    -- A claim changes no column of an index.
    claimed_until timestamptz NOT NULL DEFAULT '-infinity', -- no other process claims the entry before; of a sent one: when it was sent first
    claim         bigint,                                   -- the number of the latest claim; null: it was settled
    attempts      integer     NOT NULL DEFAULT 0,           -- claims so far, without those that were given back
    failures      integer     NOT NULL DEFAULT 0,           -- claims so far that count towards the maximum
    again         boolean     NOT NULL DEFAULT false,       -- it was enqueued again while it was claimed
    sent          boolean     NOT NULL DEFAULT false,       -- a broker has its id, and no worker has begun it
    failing_since timestamptz,                              -- time of the first failure
    settled_at    timestamptz,                              -- time of the latest result; of a done or dead entry it is the end
    state         text        NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'done', 'dead')),
    reason        text        NOT NULL DEFAULT '',          -- of the latest failure
    due_at        timestamptz NOT NULL DEFAULT now(),       -- not claimed before; infinity: a lower entry of the subject blocks it

    id            text        COLLATE "C" PRIMARY KEY DEFAULT gen_random_uuid()::text,
    seq           bigint      NOT NULL DEFAULT nextval('$name_numbers'), -- the order within a subject
    created_at    timestamptz NOT NULL DEFAULT now(),
    partition     integer     NOT NULL DEFAULT 0 CHECK (partition BETWEEN 0 AND 1000000),
    lane          text        COLLATE "C" NOT NULL DEFAULT '',
    subject       text        COLLATE "C",
    payload       bytea
) WITH (
    -- A claim writes a second version of each row into its page.
    fillfactor = 45,
    -- Every entry leaves dead rows, whatever the size of the backlog.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000
);
-- Entries that may be claimed, by lane. A claim can use no other index for them.
CREATE INDEX $name_due ON $name (partition, lane, due_at) WHERE state = 'waiting';
CREATE INDEX $name_subject ON $name (subject, seq) WHERE subject IS NOT NULL AND $unfinished;
-- For operators. No index begins with seq: Postgres might search it for the lowest entry of a subject.
CREATE INDEX $name_created ON $name (created_at, seq);
CREATE INDEX $name_dead ON $name (created_at, seq) WHERE state = 'dead';
CREATE INDEX $name_dead_lanes ON $name (lane) WHERE state = 'dead';
-- Entries that a broker has, by the time at which they are sent again.
CREATE INDEX $name_sent ON $name (due_at) WHERE sent;
`

// AgainSQL returns the end of an INSERT that enqueues entries whose ids may be in the table:
//
//	WITH stored AS (INSERT INTO … RETURNING id, client),
//		queued AS (INSERT INTO relay_queue (id, lane) SELECT id::text, client FROM stored AS s ORDER BY s.id ` + table.AgainSQL() + `)
//	SELECT id FROM stored
//
// A waiting entry becomes due at once. A claimed entry is worked on again after its handler has returned, because the handler may
// have read the domain's rows before the statement changed them. That holds after the claim's lease, too: the result of a process that
// was cut off may come late. A finished entry that was kept is worked on again. A dead entry stays dead. The statement must not contain an
// id twice, and inserts in the order of the ids (COLLATE "C"): statements that lock the same entries in different orders deadlock.
func (t Table) AgainSQL() string {
	return strings.ReplaceAll(`ON CONFLICT (id) DO UPDATE SET again = $.claim IS NOT NULL, state = 'waiting',
		due_at = CASE WHEN $.state = 'done' THEN now() WHEN $.sent THEN $.due_at ELSE LEAST($.due_at, now()) END,
		attempts = CASE $.state WHEN 'done' THEN 0 ELSE $.attempts END, failures = CASE $.state WHEN 'done' THEN 0 ELSE $.failures END,
		failing_since = CASE $.state WHEN 'done' THEN NULL ELSE $.failing_since END,
		seq = CASE $.state WHEN 'done' THEN nextval('`+t.Name+`_numbers') ELSE $.seq END
		WHERE $.state <> 'dead'`, "$.", t.Name+".")
}
