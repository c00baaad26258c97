-- +goose Up

-- The former table, under names that leave its own to the new one. Processes of an older program that still run fail from here on.
ALTER TABLE relay_queue RENAME TO relay_queue_former;
ALTER INDEX relay_queue_pkey RENAME TO relay_queue_former_pkey;
DROP INDEX relay_queue_due;
DROP INDEX relay_queue_dead;

-- Numbers of entries and of claims.
CREATE SEQUENCE relay_queue_numbers;

-- Transactions that wait for a consumer: entries of package outbox. The id is the transaction's, and the lane is the client.
CREATE TABLE relay_queue (
    -- Columns that change come first: Postgres logs an update in the same page from the first to the last byte that differs.
    -- A claim changes no column of an index.
    claimed_until timestamptz NOT NULL DEFAULT '-infinity', -- no other process claims the entry before
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
    seq           bigint      NOT NULL DEFAULT nextval('relay_queue_numbers'), -- the order within a subject
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

INSERT INTO relay_queue (id, lane, attempts, failures, reason, claimed_until, due_at, created_at, state, settled_at)
SELECT q.id::text, coalesce(t.client, ''), q.attempts, q.failures, q.reason, q.claimed_until, coalesce(nullif(q.due_at, 'infinity'), now()),
    q.enqueued_at, CASE WHEN q.dead_at IS NULL THEN 'waiting' ELSE 'dead' END, q.dead_at
FROM relay_queue_former q LEFT JOIN relay_transactions t ON t.id = q.id ORDER BY q.enqueued_at, q.id;

-- The older program deleted the entries of messages that it had sent to a broker. A message without an entry is ignored.
INSERT INTO relay_queue (id, lane) SELECT id::text, client FROM relay_transactions WHERE open AND status IN ('queued', 'submitting')
ORDER BY id ON CONFLICT DO NOTHING;

-- Entries that may be claimed, by lane. A claim can use no other index for them.
CREATE INDEX relay_queue_due ON relay_queue (partition, lane, due_at) WHERE state = 'waiting';
CREATE INDEX relay_queue_subject ON relay_queue (subject, seq) WHERE subject IS NOT NULL AND state = 'waiting';
-- For operators. No index begins with seq: Postgres might search it for the lowest entry of a subject.
CREATE INDEX relay_queue_created ON relay_queue (created_at, seq);
CREATE INDEX relay_queue_dead ON relay_queue (created_at, seq) WHERE state = 'dead';
CREATE INDEX relay_queue_dead_lanes ON relay_queue (lane) WHERE state = 'dead';
-- Entries that a broker has, by the time at which they are sent again.
CREATE INDEX relay_queue_sent ON relay_queue (due_at) WHERE sent;

DROP TABLE relay_queue_former;

-- +goose Down

ALTER TABLE relay_queue RENAME TO relay_queue_latter;
ALTER INDEX relay_queue_pkey RENAME TO relay_queue_latter_pkey;
DROP INDEX relay_queue_due;
DROP INDEX relay_queue_dead;

-- The queue of the relay path, and the outbox of a queue in a broker.
CREATE TABLE relay_queue (
    -- Columns that change come first: Postgres logs an update in the same page from the first to the last byte that differs.
    -- A claim changes no column of an index.
    claimed_until timestamptz NOT NULL DEFAULT '-infinity', -- no other process claims the entry before
    claimant      uuid,                                     -- the process that has claimed it
    attempts      integer     NOT NULL DEFAULT 0,           -- claims so far
    failures      integer     NOT NULL DEFAULT 0,           -- claims so far that count towards the dead letter
    reason        text        NOT NULL DEFAULT '',          -- of the latest failure
    due_at        timestamptz NOT NULL DEFAULT now(),       -- not claimed before; infinity for a dead letter
    dead_at       timestamptz,                              -- when it became a dead letter
    id            uuid        PRIMARY KEY,                  -- of the transaction
    enqueued_at   timestamptz NOT NULL DEFAULT now()
) WITH (
    -- A claim writes a second version of each row into its page.
    fillfactor = 45,
    -- Every message leaves dead rows, whatever the size of the backlog.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000
);
-- Entries that may be claimed. A claim can use no other index.
CREATE INDEX relay_queue_due ON relay_queue (due_at);
CREATE INDEX relay_queue_dead ON relay_queue (dead_at, id) WHERE dead_at IS NOT NULL;

INSERT INTO relay_queue (id, claimed_until, attempts, failures, reason, due_at, dead_at, enqueued_at)
SELECT id::uuid, claimed_until, attempts, failures, reason, CASE WHEN state = 'dead' THEN 'infinity' ELSE due_at END,
    CASE WHEN state = 'dead' THEN settled_at END, created_at
FROM relay_queue_latter;

DROP TABLE relay_queue_latter;
DROP SEQUENCE relay_queue_numbers;
