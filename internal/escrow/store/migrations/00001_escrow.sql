-- +goose Up

-- One row for each chain. Its writers exclude each other by it: each step of a chain locks it, and compares the cursor and the epoch.
CREATE TABLE escrow_chains (
    chain_id      bigint      PRIMARY KEY,

    -- The settings that a start must repeat.
    factories     bytea[]     NOT NULL,
    start_block   bigint      NOT NULL,
    events        text        NOT NULL, -- the set of events, in the form of package events

    -- The names of the targets of messages, sorted, as the newest start has them: an operator's command enqueues for these.
    targets       text[]      NOT NULL,

    -- The watcher's lease.
    watcher       text        NOT NULL DEFAULT '',
    watcher_until timestamptz NOT NULL DEFAULT '-infinity',
    epoch         bigint      NOT NULL DEFAULT 0,

    -- The newest block whose events are stored, and the newest final one that the endpoints agree on; null before the first.
    cursor_number bigint,
    cursor_hash   bytea,
    cursor_time   timestamptz,
    final_number  bigint,
    final_hash    bytea,
    moved_at      timestamptz, -- of the cursor

    -- Why nothing may be stored or published: the chain contradicts a final block. Only an operator removes it.
    halted        text        NOT NULL DEFAULT '',

    blocks        bigint      NOT NULL DEFAULT 0, -- processed so far
    repeated      bigint      NOT NULL DEFAULT 0  -- events that were read again from the same block
);

-- The blocks after the final one, and the last one before them, to find where a reorganization begins.
CREATE TABLE escrow_blocks (
    chain_id bigint      NOT NULL,
    number   bigint      NOT NULL,
    hash     bytea       NOT NULL,
    parent   bytea       NOT NULL,
    time     timestamptz NOT NULL,
    PRIMARY KEY (chain_id, number)
);

CREATE TABLE escrow_accounts (
    chain_id   bigint      NOT NULL,
    escrow     bytea       NOT NULL,
    partition  integer     NOT NULL,
    sequence   bigint      NOT NULL, -- of the escrow's last message
    created    bigint,               -- the block with the factory's event; null while no block of the chain has one
    state      text        NOT NULL DEFAULT '',
    payer      bytea,
    payee      bytea,
    amount     numeric(78, 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id, escrow)
) WITH (fillfactor = 70);

-- The documents' view of the escrows that are on the chain.
CREATE VIEW escrow_registry AS
SELECT a.chain_id, '0x' || encode(a.escrow, 'hex') AS escrow_address, '0x' || encode(a.payer, 'hex') AS payer, '0x' || encode(a.payee, 'hex') AS payee,
    a.amount, a.state AS status, a.created AS created_block, a.partition, a.created_at, a.updated_at, c.cursor_number AS last_monitored_block
FROM escrow_accounts a JOIN escrow_chains c ON c.chain_id = a.chain_id WHERE a.created IS NOT NULL;

-- The last message of each event.
CREATE TABLE processed_events (
    event_id     text        COLLATE "C" PRIMARY KEY,
    chain_id     bigint      NOT NULL,
    escrow       bytea       NOT NULL,
    status       text        NOT NULL CHECK (status IN ('pending', 'final', 'retracted')),
    block_number bigint      NOT NULL,
    place        integer     NOT NULL, -- among the events of the block
    message      bytea       NOT NULL, -- JSON, which may hold what jsonb refuses
    processed_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX processed_events_block ON processed_events (chain_id, block_number, place);
CREATE INDEX processed_events_escrow ON processed_events (chain_id, escrow, block_number, place);
CREATE INDEX processed_events_pending ON processed_events (chain_id, block_number, place) WHERE status = 'pending';

-- Logs of watched contracts with watched topics that do not decode.
CREATE TABLE escrow_parked (
    chain_id     bigint      NOT NULL,
    block_number bigint      NOT NULL,
    block_hash   bytea       NOT NULL,
    event_id     text        COLLATE "C" NOT NULL,
    escrow       bytea,               -- null: of a factory
    contract     bytea       NOT NULL,
    topics       bytea[]     NOT NULL,
    data         bytea       NOT NULL,
    tx_hash      bytea       NOT NULL,
    log_index    bigint      NOT NULL, -- the node's, which may repeat
    reason       text        NOT NULL,
    parked_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id, block_number, event_id)
);

-- The running instances of each chain.
CREATE TABLE relayer_instances (
    chain_id         bigint      NOT NULL,
    instance_id      text        COLLATE "C" NOT NULL,
    run              text        NOT NULL, -- of the process: a later one under the same id replaces it
    started_at       timestamptz NOT NULL DEFAULT now(),
    heartbeat_at     timestamptz NOT NULL DEFAULT now(), -- written only while the loops of the process turn
    version          text        NOT NULL,
    host             text        NOT NULL,
    pid              bigint      NOT NULL,
    partition_number integer,              -- null: it publishes all partitions
    total_partitions integer,
    is_leader        boolean     NOT NULL DEFAULT false, -- it has the watcher's lease
    PRIMARY KEY (chain_id, instance_id)
);

-- Numbers of entries and of claims.
CREATE SEQUENCE escrow_outbox_numbers;

-- Durable work, as package outbox documents it.
CREATE TABLE escrow_outbox (
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
    seq           bigint      NOT NULL DEFAULT nextval('escrow_outbox_numbers'), -- the order within a subject
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
CREATE INDEX escrow_outbox_due ON escrow_outbox (partition, lane, due_at) WHERE state = 'waiting';
CREATE INDEX escrow_outbox_subject ON escrow_outbox (subject, seq) WHERE subject IS NOT NULL AND state IN ('waiting', 'dead');
-- For operators. No index begins with seq: Postgres might search it for the lowest entry of a subject.
CREATE INDEX escrow_outbox_created ON escrow_outbox (created_at, seq);
CREATE INDEX escrow_outbox_dead ON escrow_outbox (created_at, seq) WHERE state = 'dead';
CREATE INDEX escrow_outbox_dead_lanes ON escrow_outbox (lane) WHERE state = 'dead';
-- Entries that a broker has, by the time at which they are sent again.
CREATE INDEX escrow_outbox_sent ON escrow_outbox (due_at) WHERE sent;

-- +goose Down

DROP TABLE escrow_outbox, relayer_instances, escrow_parked, processed_events;
DROP SEQUENCE escrow_outbox_numbers;
DROP VIEW escrow_registry;
DROP TABLE escrow_accounts, escrow_blocks, escrow_chains;
