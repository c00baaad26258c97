-- +goose Up

-- One row a transaction of a client. A change of its status writes no index, but when a relayer accepts it and when it becomes
-- final. Half of each page is for the versions of a row.
CREATE TABLE relay_transactions (
    id                uuid        PRIMARY KEY, -- version 7
    client            text        NOT NULL,
    client_id         text,       -- the id that the client has chosen
    idempotency_key   text,
    request_hash      bytea       NOT NULL,
    kind              text        NOT NULL CHECK (kind IN ('direct', 'gasless')),

    to_address        bytea       NOT NULL CHECK (length(to_address) = 20),
    value_wei         numeric(78, 0) NOT NULL CHECK (value_wei >= 0),
    data              bytea       NOT NULL,
    gas_limit         bigint      NOT NULL CHECK (gas_limit > 0),
    speed             text        NOT NULL,
    digest            bytea       NOT NULL, -- of receiver, value and data
    signer            bytea,      -- of a gasless one, as are the nonce and the deadline
    forward_nonce     numeric(78, 0),
    forward_deadline  bigint,     -- Unix seconds: the contract's are beyond the times of Postgres
    traceparent       text        NOT NULL DEFAULT '',
    webhook           boolean     NOT NULL, -- changes are delivered to the client

    status            text        NOT NULL DEFAULT 'queued' CHECK (status IN ('queued', 'submitting', 'unknown', 'submitted', 'mined',
                          'confirmed', 'failed', 'canceled', 'expired')),
    status_reason     text        NOT NULL DEFAULT '',
    revision          integer     NOT NULL DEFAULT 1,
    open              boolean     NOT NULL DEFAULT true,  -- not final
    outstanding       boolean     NOT NULL DEFAULT false, -- accepted by a relayer, and not final

    -- The relayer that may have it. Empty while it is queued.
    relayer           text        NOT NULL DEFAULT '',
    relayer_url       text        NOT NULL DEFAULT '',
    relayer_id        text        NOT NULL DEFAULT '',
    scope             text        NOT NULL DEFAULT '',
    relayer_tx        text,       -- the relayer's id of it
    tx_hash           bytea,
    -- The last report of the relayer that was applied: its own revision, 0 without one, and its time.
    reported_revision integer     NOT NULL DEFAULT 0,
    reported_at       timestamptz NOT NULL DEFAULT '-infinity',

    -- Its relayer is asked to cancel it, so that another one can have it, and how often that was done.
    withdrawing       boolean     NOT NULL DEFAULT false,
    withdrawn         integer     NOT NULL DEFAULT 0,
    -- The consumer that may submit it, until when, and how often one has begun.
    holder            uuid,
    held_until        timestamptz NOT NULL DEFAULT '-infinity',
    attempts          integer     NOT NULL DEFAULT 0,
    requested_at      timestamptz NOT NULL DEFAULT '-infinity', -- end of the last request that its relayer may still process
    -- When the reconciler looks at it next, and how often it has since the last change.
    check_at          timestamptz NOT NULL DEFAULT 'infinity',
    checks            integer     NOT NULL DEFAULT 0,

    created_at        timestamptz NOT NULL DEFAULT now(),
    submitted_at      timestamptz,
    updated_at        timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX relay_transactions_client_id ON relay_transactions (client, client_id) WHERE client_id IS NOT NULL;
CREATE UNIQUE INDEX relay_transactions_idempotency ON relay_transactions (client, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX relay_transactions_client ON relay_transactions (client, id);
-- A relayer's id may come from any of the relayers: ids of two relayers may be equal.
CREATE INDEX relay_transactions_relayer_tx ON relay_transactions (relayer_tx) WHERE relayer_tx IS NOT NULL;
CREATE INDEX relay_transactions_open ON relay_transactions (id) WHERE open;
CREATE INDEX relay_transactions_outstanding ON relay_transactions (relayer) WHERE outstanding;
-- One pending request for each nonce of a signer at the forwarder.
CREATE UNIQUE INDEX relay_transactions_forward ON relay_transactions (signer, forward_nonce) WHERE signer IS NOT NULL AND open;

-- One row a change of a transaction.
CREATE TABLE relay_history (
    tx       uuid        NOT NULL,
    revision integer     NOT NULL,
    status   text        NOT NULL,
    reason   text        NOT NULL,
    relayer  text        NOT NULL,
    tx_hash  bytea,
    at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tx, revision)
);

-- Calls that a relayer without idempotency keys may have: a second one with the same effect could not be distinguished from the first.
CREATE TABLE relay_unresolved_calls (
    digest bytea PRIMARY KEY,
    tx     uuid  NOT NULL
);

-- Reports of transactions that no row has: the relayer's id of a transaction is stored after the relayer has answered.
CREATE TABLE relay_reports (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    relayer_tx  text        NOT NULL,
    status      text        NOT NULL,
    reason      text        NOT NULL,
    tx_hash     bytea,
    revision    integer     NOT NULL,
    at          timestamptz, -- null: the report has none
    digest      bytea,       -- of the reported call; null: the report does not contain all of it
    received_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX relay_reports_relayer_tx ON relay_reports (relayer_tx);
CREATE INDEX relay_reports_received_at ON relay_reports (received_at);

-- The webhooks of clients, as package webhook requires them of a plain source. Its tests read this statement, and those of the
-- indexes.
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

-- +goose Down
DROP TABLE relay_deliveries, relay_reports, relay_unresolved_calls, relay_history, relay_transactions;
