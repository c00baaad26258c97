-- +goose Up

-- Numbers of entries and of claims.
CREATE SEQUENCE relay_webhooks_numbers;

-- The webhooks of clients: entries of package outbox. The lane is the client, and the subject is the transaction and the client.
CREATE TABLE relay_webhooks (
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

    -- The webhook's id, the same in each attempt: a UUID of version 7, so that new ids are at the end of the index.
    id            text        COLLATE "C" PRIMARY KEY DEFAULT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
                        || right(replace(gen_random_uuid()::text, '-', ''), 19))::uuid::text,
    seq           bigint      NOT NULL DEFAULT nextval('relay_webhooks_numbers'), -- the order within a subject
    created_at    timestamptz NOT NULL DEFAULT now(),
    partition     integer     NOT NULL DEFAULT 0 CHECK (partition BETWEEN 0 AND 1000000),
    lane          text        COLLATE "C" NOT NULL DEFAULT '',
    subject       text        COLLATE "C",
    payload       bytea,                                    -- as it is sent, JSON

    about         uuid,                                     -- the transaction
    revision      integer     NOT NULL DEFAULT 0
) WITH (
    -- A claim writes a second version of each row into its page.
    fillfactor = 45,
    -- Every entry leaves dead rows, whatever the size of the backlog.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000
);
-- Processes of an older program that still run wait here, and fail afterwards.
LOCK TABLE relay_deliveries IN ACCESS EXCLUSIVE MODE;

-- Of one subject the order of the revisions is that of the numbers. A delivery that was never tried is due; a claim finds
-- whether a lower revision blocks it. The older program retried for a day after the first claim.
INSERT INTO relay_webhooks (seq, id, state, claimed_until, attempts, failures, failing_since, settled_at, reason, due_at, created_at,
    lane, subject, payload, about, revision)
SELECT nextval('relay_webhooks_numbers'), id::text,
    CASE state WHEN 'due' THEN 'waiting' WHEN 'delivered' THEN 'done' ELSE 'dead' END,
    CASE WHEN state = 'due' THEN claimed_until ELSE '-infinity' END, attempts, attempts,
    CASE WHEN last_error <> '' THEN retry_until - interval '1 day' END,
    CASE state WHEN 'delivered' THEN coalesce(delivered_at, now()) WHEN 'dead_letter' THEN now() END, last_error,
    CASE WHEN state = 'due' AND attempts = 0 THEN created_at ELSE next_at END, created_at,
    target,
    subject || '/' || target, convert_to(payload::text, 'UTF8'), subject, revision
FROM (SELECT * FROM relay_deliveries ORDER BY revision, id OFFSET 0) AS old;

-- Entries that may be claimed, by lane. A claim can use no other index for them.
CREATE INDEX relay_webhooks_due ON relay_webhooks (partition, lane, due_at) WHERE state = 'waiting';
CREATE INDEX relay_webhooks_subject ON relay_webhooks (subject, seq) WHERE subject IS NOT NULL AND state = 'waiting';
CREATE INDEX relay_webhooks_about ON relay_webhooks (about);
-- For operators. No index begins with seq: Postgres might search it for the lowest entry of a subject.
CREATE INDEX relay_webhooks_created ON relay_webhooks (created_at, seq);
CREATE INDEX relay_webhooks_dead ON relay_webhooks (created_at, seq) WHERE state = 'dead';
CREATE INDEX relay_webhooks_dead_lanes ON relay_webhooks (lane) WHERE state = 'dead';
-- Entries that a broker has, by the time at which they are sent again.
CREATE INDEX relay_webhooks_sent ON relay_webhooks (due_at) WHERE sent;

DROP TABLE relay_deliveries;

-- +goose Down

-- The webhooks of clients.
CREATE TABLE relay_deliveries (
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
CREATE INDEX relay_deliveries_due ON relay_deliveries (target, next_at) WHERE state = 'due';
CREATE INDEX relay_deliveries_dead ON relay_deliveries (created_at) WHERE state = 'dead_letter';

LOCK TABLE relay_webhooks IN ACCESS EXCLUSIVE MODE;

INSERT INTO relay_deliveries (id, state, claimed_until, attempts, retry_until, delivered_at, last_error, next_at, created_at,
    subject, revision, payload, target)
SELECT id::uuid, CASE state WHEN 'waiting' THEN 'due' WHEN 'done' THEN 'delivered' ELSE 'dead_letter' END, claimed_until, attempts,
    failing_since + interval '1 day', CASE WHEN state = 'done' THEN settled_at END, reason, CASE due_at WHEN 'infinity' THEN now() ELSE due_at END,
    created_at, about, revision, convert_from(payload, 'UTF8')::jsonb, lane
FROM relay_webhooks;

DROP TABLE relay_webhooks;
DROP SEQUENCE relay_webhooks_numbers;
