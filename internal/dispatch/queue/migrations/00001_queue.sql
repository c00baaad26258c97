-- +goose Up

-- The queue of the relay path, and the outbox of a queue in a broker. Package queue documents it.
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

-- +goose Down
DROP TABLE relay_queue;
