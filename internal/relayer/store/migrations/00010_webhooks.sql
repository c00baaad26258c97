-- +goose Up

-- A delivery no longer copies the whole transaction: it stores what can change, and the rest is read from relayer_txs when it is
-- delivered. Its ids grow with time, so that the primary key is written at its end and is read in order of age.
DROP TABLE relayer_deliveries;
CREATE TABLE relayer_deliveries (
    -- Columns that change come first: Postgres logs an update in the same page from the first to the last byte that differs.
    -- A claim changes no column of an index.
    claimed_until   timestamptz NOT NULL DEFAULT '-infinity',
    claimant        uuid,                               -- the process that has claimed the delivery
    attempts        integer     NOT NULL DEFAULT 0,     -- claims so far
    retry_until     timestamptz,                        -- counted from the first claim; null before
    state           text        NOT NULL DEFAULT 'due' CHECK (state IN ('due', 'delivered', 'parked')),
    delivered_at    timestamptz,
    last_error      text        NOT NULL DEFAULT '',
    next_at         timestamptz NOT NULL DEFAULT now(), -- of a due one: it is not claimed before

    -- The webhook's id, the same in each attempt: a UUID of version 7.
    id              uuid        PRIMARY KEY DEFAULT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
                        || right(replace(gen_random_uuid()::text, '-', ''), 19))::uuid,
    subject         uuid        NOT NULL,               -- deliveries of one subject are ordered: the transaction, or a hash of a relayer's name
    created_at      timestamptz NOT NULL DEFAULT now(),
    chain_id        bigint      NOT NULL,
    pool_id         text        NOT NULL,
    target          text        NOT NULL,               -- the name of a configured target
    revision        integer     NOT NULL,

    -- A relayer's event; null for a change of a transaction, which has the columns below, as they were at that change.
    payload         jsonb,
    status          text,
    status_reason   text,
    intent          text,
    tx_attempts     integer,
    relayer_address bytea,
    nonce           bigint,
    tx_hash         bytea,
    sent_at         timestamptz,
    confirmed_at    timestamptz,
    -- Null unless the transaction's contents were replaced later: then what they were.
    contents        jsonb,

    UNIQUE (subject, target, revision)
) WITH (
    -- A claim writes a second version of each row into its page.
    fillfactor = 45,
    -- Dead rows are few against a long history of delivered ones, and claims pass by all of them.
    autovacuum_vacuum_scale_factor = 0.02
);
-- What may be claimed. The queries of a claim can use nothing else.
CREATE INDEX relayer_deliveries_due ON relayer_deliveries (chain_id, pool_id, target, next_at) WHERE state = 'due';
CREATE INDEX relayer_deliveries_parked ON relayer_deliveries (created_at) WHERE state = 'parked';

-- +goose Down
DROP TABLE relayer_deliveries;
CREATE TABLE relayer_deliveries (
    id            uuid    PRIMARY KEY,
    chain_id      bigint  NOT NULL,
    pool_id       text    NOT NULL,
    target        text    NOT NULL,
    event         text    NOT NULL,
    tx_id         uuid,
    subject       text    NOT NULL,
    revision      integer NOT NULL,
    snapshot      jsonb   NOT NULL,
    state         text    NOT NULL DEFAULT 'due' CHECK (state IN ('due', 'delivered', 'parked')),
    attempts      integer NOT NULL DEFAULT 0,
    next_at       timestamptz NOT NULL DEFAULT now(),
    created_at    timestamptz NOT NULL DEFAULT now(),
    delivered_at  timestamptz,
    last_error    text    NOT NULL DEFAULT '',
    claimant      text    NOT NULL DEFAULT '',
    retry_until   timestamptz,
    UNIQUE (subject, target, revision)
) WITH (fillfactor = 80);
CREATE INDEX relayer_deliveries_due ON relayer_deliveries (chain_id, pool_id, target, next_at) WHERE state = 'due';
CREATE INDEX relayer_deliveries_parked ON relayer_deliveries (created_at) WHERE state = 'parked';
CREATE INDEX relayer_deliveries_age ON relayer_deliveries USING brin (created_at);
