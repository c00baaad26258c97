-- +goose Up

-- One row a chain: how it is recognized, and which generation of it counts.
CREATE TABLE relayer_chains (
    chain_id      bigint  PRIMARY KEY,
    genesis_hash  text    NOT NULL,
    -- A block deeper than any reorganization. A node that does not have it has another history.
    anchor_number bigint  NOT NULL DEFAULT 0,
    anchor_hash   text    NOT NULL,
    -- A chain that lost its history begins another generation. Nonces, and with them hashes, come again in it, and no row
    -- of its history has to be rewritten for that.
    generation    integer NOT NULL DEFAULT 0
);

-- One row a pool.
CREATE TABLE relayer_pools (
    chain_id      bigint NOT NULL,
    pool_id       text   NOT NULL,
    -- Names the store of idempotency keys. A failover or a restore may have lost keys: the row then gets another one.
    identity      uuid   NOT NULL DEFAULT gen_random_uuid(),
    targets       text[] NOT NULL, -- names of the webhook targets that are notified of each change
    -- The timeline of Postgres under which nonces were given out last. Another one means that the server failed over, and
    -- may have lost commits that it had acknowledged.
    timeline      text   NOT NULL,
    -- The process that follows the chain for the pool, until when, and a number that grows with each. Two that believe to
    -- hold the lease do the same work twice and no harm: every change compares before it writes.
    tracker       text        NOT NULL DEFAULT '',
    tracker_epoch bigint      NOT NULL DEFAULT 0,
    tracker_until timestamptz NOT NULL DEFAULT '-infinity',
    -- The newest block with transactions that were made final; 0: none. The tracker reports when the chain no longer has
    -- it.
    final_number  bigint      NOT NULL DEFAULT 0,
    final_hash    text        NOT NULL DEFAULT '',
    PRIMARY KEY (chain_id, pool_id)
);

-- The database transaction that has recorded under which timeline a pool's nonces are given out. A dump is restored by
-- another one, so that xmin of the row differs: nonces were given out since that the store does not have.
CREATE TABLE relayer_origins (
    chain_id bigint NOT NULL,
    pool_id  text   NOT NULL,
    origin   bigint NOT NULL,
    PRIMARY KEY (chain_id, pool_id)
);

-- The row of a key is its lock: nonces are given out under it, in the order of addresses where several are taken.
CREATE TABLE relayer_keys (
    id                bigint      GENERATED ALWAYS AS IDENTITY UNIQUE,
    chain_id          bigint      NOT NULL,
    address           text        NOT NULL CHECK (address ~ '^0x[0-9a-f]{40}$'),
    pool_id           text        NOT NULL,
    enabled           boolean     NOT NULL DEFAULT true,
    disabled_reason   text        NOT NULL DEFAULT '',
    disabled_until    timestamptz,                     -- not checked before; null: at each check
    disabled_checks   integer     NOT NULL DEFAULT 0,  -- checks that left it disabled
    funding           boolean     NOT NULL DEFAULT false, -- it tops the others up, and sends no caller's transactions
    paused            boolean     NOT NULL DEFAULT false,
    draining          boolean     NOT NULL DEFAULT false,
    stuck_since       timestamptz,
    next_nonce        bigint      NOT NULL CHECK (next_nonce >= 0),
    pending_count     integer     NOT NULL DEFAULT 0 CHECK (pending_count >= 0),
    last_error        text        NOT NULL DEFAULT '',
    last_seen_at      timestamptz,
    last_confirmed_at timestamptz,
    balance_wei       numeric(78, 0),
    balance_at        timestamptz,
    -- The most that the transactions that were pending when the balance was read, and all that came since, may cost.
    committed_wei     numeric     NOT NULL DEFAULT 0,
    min_balance_wei   numeric(78, 0) NOT NULL DEFAULT 0 CHECK (min_balance_wei >= 0),
    min_balance_own   boolean     NOT NULL DEFAULT false, -- set for this key; otherwise it follows the processes' setting
    created_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now(),
    -- When a process last registered the key, and when a round of the tracker began that has compared it with the chain.
    -- A process gives out none of its nonces before a comparison that is younger than its registration.
    registered_at     timestamptz NOT NULL DEFAULT now(),
    compared_at       timestamptz NOT NULL DEFAULT '-infinity',
    -- The hour in which the last gap was filled, and how many nonces were filled in it.
    filled_hour       timestamptz NOT NULL DEFAULT '-infinity',
    filled            integer     NOT NULL DEFAULT 0,
    PRIMARY KEY (chain_id, address)
) WITH (fillfactor = 50); -- each claim rewrites the row: room for that in its page

-- Since when a value of a key has been the same, by the database's clock: ages that do not end with the process that
-- follows the chain.
CREATE TABLE relayer_timers (
    chain_id bigint      NOT NULL,
    address  text        NOT NULL,
    name     text        NOT NULL,
    mark     text        NOT NULL, -- the value
    head     bigint      NOT NULL, -- the chain's head then
    since    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id, address, name)
) WITH (fillfactor = 50); -- a row is rewritten with each block

-- One row a transaction. A change of its status writes no index as long as the new version finds room in the page of the
-- old one, and no index has a column that changes with it. A row changes three times: half of each page is for that.
CREATE TABLE relayer_txs (
    id                uuid    PRIMARY KEY,
    chain_id          bigint  NOT NULL,
    pool_id           text    NOT NULL,
    target            text    NOT NULL, -- the pool, or the only key that may send it
    caller            text    NOT NULL,
    kind              text    NOT NULL CHECK (kind IN ('transaction', 'noop', 'topup', 'foreign')),
    relayer_address   text    CHECK (relayer_address ~ '^0x[0-9a-f]{40}$'),
    nonce             bigint  CHECK (nonce >= 0),
    tx_hash           text,
    status            text    NOT NULL CHECK (status IN ('allocated', 'broadcasted', 'unknown', 'mined', 'confirmed',
                          'reverted', 'dropped', 'replaced', 'failed', 'canceled', 'expired')),
    status_reason     text    NOT NULL DEFAULT '',
    -- Whether the status can still change. A column of its own, so that no index has to be written with each change of
    -- status.
    open              boolean NOT NULL DEFAULT true,
    intent            text    NOT NULL DEFAULT 'send' CHECK (intent IN ('send', 'cancel', 'expire', 'fail')),
    intent_reason     text    NOT NULL DEFAULT '',
    -- When an operator last asked for a higher fee: the tracker signs an attempt that is younger.
    bump_requested_at timestamptz,
    revision          integer NOT NULL DEFAULT 1,
    attempts          integer NOT NULL DEFAULT 0,

    to_address        text,
    value_wei         numeric(78, 0) NOT NULL DEFAULT 0 CHECK (value_wei >= 0),
    data              bytea   NOT NULL DEFAULT '',
    gas_limit         bigint  NOT NULL DEFAULT 0 CHECK (gas_limit >= 0),
    speed             text    NOT NULL DEFAULT '',
    -- The fees that the caller asked for; the attempts have those that were offered.
    gas_price         numeric(78, 0),
    max_fee           numeric(78, 0),
    max_priority      numeric(78, 0),
    valid_until       timestamptz,
    -- The most that its gas may cost by the fees at acceptance, and the days whose budgets that was taken from: of the
    -- caller and the trader, and of the key. Null where there was no budget.
    reserve_wei       numeric(78, 0),
    budget_day        date,
    key_budget_day    date,

    method            text    NOT NULL DEFAULT '',
    orderbook         text    NOT NULL DEFAULT '',
    trader            text    NOT NULL DEFAULT '',
    request_id        text    NOT NULL DEFAULT '',
    trace_id          text    NOT NULL DEFAULT '',
    traceparent       text    NOT NULL DEFAULT '', -- W3C trace context of the request that posted it

    block_number      bigint,
    block_hash        text,
    -- Of the block that it is in: whether it succeeded, and the purpose of its bytes.
    succeeded         boolean,
    mined_purpose     text,
    gas_used          bigint,
    gas_price_paid    numeric(78, 0),
    created_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now(),
    sent_at           timestamptz,
    mined_at          timestamptz,
    confirmed_at      timestamptz,
    -- When an operator took the row back after a reorganization that was deeper than the blocks that count as final;
    -- null: never.
    taken_back_at     timestamptz,
    generation        integer NOT NULL DEFAULT 0, -- of the chain, in which it got its nonce
    -- Lists filter by this. Few rows of a long history have it, and it changes once, together with open.
    unsuccessful      boolean NOT NULL GENERATED ALWAYS AS (NOT open AND status <> 'confirmed') STORED,

    CHECK ((nonce IS NULL) OR (relayer_address IS NOT NULL)),
    -- No nonce is given out twice.
    CONSTRAINT relayer_txs_nonce UNIQUE (chain_id, relayer_address, nonce, generation)
) WITH (fillfactor = 45);

-- Transactions that can still change and have a nonce: the tracker reads them.
CREATE INDEX relayer_txs_open ON relayer_txs (chain_id, relayer_address, nonce) WHERE open AND nonce IS NOT NULL;
-- Transactions that wait for a key: the oldest of the pool; and of a target the oldest, the cheapest, and the one with
-- the smallest reserve, each found without reading the rest.
CREATE INDEX relayer_txs_queue ON relayer_txs (chain_id, pool_id, id) WHERE open AND nonce IS NULL;
CREATE INDEX relayer_txs_waiting ON relayer_txs (chain_id, pool_id, target, id) WHERE open AND nonce IS NULL;
CREATE INDEX relayer_txs_waiting_cost ON relayer_txs (chain_id, pool_id, target, (value_wei + coalesce(reserve_wei, 0))) WHERE open AND nonce IS NULL;
CREATE INDEX relayer_txs_waiting_reserve ON relayer_txs (chain_id, pool_id, target, (coalesce(reserve_wei, 0))) WHERE open AND nonce IS NULL;
CREATE INDEX relayer_txs_bump ON relayer_txs (chain_id, pool_id) WHERE open AND bump_requested_at IS NOT NULL;
CREATE INDEX relayer_txs_expiry ON relayer_txs (valid_until) WHERE open AND valid_until IS NOT NULL;
-- Columns that lists are filtered by. They cost nothing where callers leave them empty.
CREATE INDEX relayer_txs_trader ON relayer_txs (trader, id) WHERE trader <> '';
CREATE INDEX relayer_txs_request ON relayer_txs (request_id) WHERE request_id <> '';
CREATE INDEX relayer_txs_method ON relayer_txs (method, id) WHERE method <> '';
CREATE INDEX relayer_txs_orderbook ON relayer_txs (orderbook, id) WHERE orderbook <> '';
CREATE INDEX relayer_txs_trace ON relayer_txs (trace_id) WHERE trace_id <> '';
CREATE INDEX relayer_txs_unsuccessful ON relayer_txs (id) WHERE unsuccessful;
-- Rows lie in the order of their age, and a BRIN index costs their writers next to nothing.
CREATE INDEX relayer_txs_age ON relayer_txs USING brin (created_at);
-- A key gets one top-up at a time. Several that were final may be taken back together.
CREATE UNIQUE INDEX relayer_txs_topup ON relayer_txs (chain_id, to_address) WHERE kind = 'topup' AND open AND taken_back_at IS NULL;
CREATE INDEX relayer_txs_topups ON relayer_txs (chain_id, to_address) WHERE kind = 'topup';

-- How many transactions wait for each target (the pool, or one key). Triggers keep it, so that no statement can forget to:
-- acceptance reads one row a target here, where it would count the whole queue under the locks of the keys. There is no
-- check that waiting is positive: a wrong count may admit a little more, and must never refuse a cancellation.
CREATE TABLE relayer_queues (
    chain_id bigint NOT NULL,
    pool_id  text   NOT NULL,
    target   text   NOT NULL,
    waiting  bigint NOT NULL,
    PRIMARY KEY (chain_id, pool_id, target)
) WITH (fillfactor = 20); -- each change rewrites the row: room for that in its page

-- +goose StatementBegin
CREATE FUNCTION relayer_queue_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO relayer_queues AS q SELECT chain_id, pool_id, target, count(*) FROM added
        WHERE open AND nonce IS NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
        ON CONFLICT (chain_id, pool_id, target) DO UPDATE SET waiting = q.waiting + excluded.waiting;
    RETURN NULL;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION relayer_queue_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO relayer_queues AS q SELECT chain_id, pool_id, target, sum(n) FROM (
            SELECT chain_id, pool_id, target, 1 AS n FROM added WHERE open AND nonce IS NULL
            UNION ALL SELECT chain_id, pool_id, target, -1 FROM removed WHERE open AND nonce IS NULL) AS changed
        GROUP BY 1, 2, 3 HAVING sum(n) <> 0 ORDER BY 1, 2, 3
        ON CONFLICT (chain_id, pool_id, target) DO UPDATE SET waiting = q.waiting + excluded.waiting;
    RETURN NULL;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION relayer_queue_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO relayer_queues AS q SELECT chain_id, pool_id, target, -count(*) FROM removed
        WHERE open AND nonce IS NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
        ON CONFLICT (chain_id, pool_id, target) DO UPDATE SET waiting = q.waiting + excluded.waiting;
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER relayer_queue_inserted AFTER INSERT ON relayer_txs
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION relayer_queue_inserted();
CREATE TRIGGER relayer_queue_updated AFTER UPDATE ON relayer_txs
    REFERENCING OLD TABLE AS removed NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION relayer_queue_updated();
CREATE TRIGGER relayer_queue_deleted AFTER DELETE ON relayer_txs
    REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION relayer_queue_deleted();

-- Every signed transaction. A row here may have been sent, whatever the nodes answered. Two processes that sign at once
-- compete for (tx_id, attempt): only the one that stored its bytes may broadcast them.
CREATE TABLE relayer_attempts (
    tx_id        uuid        NOT NULL,
    attempt      integer     NOT NULL CHECK (attempt > 0),
    chain_id     bigint      NOT NULL,
    address      text        NOT NULL,
    nonce        bigint      NOT NULL,
    purpose      text        NOT NULL CHECK (purpose IN ('send', 'replace', 'noop')),
    tx_hash      text        NOT NULL,
    raw          bytea       NOT NULL,
    max_fee      numeric(78, 0) NOT NULL,
    max_priority numeric(78, 0),
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_error   text        NOT NULL DEFAULT '',
    -- When an attempt that nodes refused or lost may be sent again, by the database's clock, and after how many sends in
    -- vain. No index has either column, and a tenth of each page is left for the new versions of rows.
    resends      integer     NOT NULL DEFAULT 0,
    next_send_at timestamptz,
    PRIMARY KEY (tx_id, attempt)
) WITH (fillfactor = 90);
-- The same transaction at the same nonce of the same key is the same bytes, in any generation.
CREATE UNIQUE INDEX relayer_attempts_hash ON relayer_attempts (tx_hash, tx_id);

-- A caller's idempotency keys. They outlive the transactions' history, if that is kept shorter.
CREATE TABLE relayer_idempotency (
    chain_id   bigint      NOT NULL,
    pool_id    text        NOT NULL,
    caller     text        NOT NULL,
    key        text        NOT NULL,
    body_hash  bytea       NOT NULL,
    tx_id      uuid        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id, pool_id, caller, key)
);
CREATE INDEX relayer_idempotency_age ON relayer_idempotency USING brin (created_at);

-- The gas of a day's transactions, by API key, trader and relayer key; and the sum of a day's top-ups.
CREATE TABLE relayer_budgets (
    chain_id  bigint NOT NULL,
    pool_id   text   NOT NULL,
    day       date   NOT NULL, -- UTC
    scope     text   NOT NULL CHECK (scope IN ('caller', 'trader', 'key', 'topup')),
    subject   text   NOT NULL,
    -- An accepted transaction counts with its gas limit and highest fee until it is final, then with its real cost.
    spent_wei numeric(78, 0) NOT NULL CHECK (spent_wei >= 0),
    PRIMARY KEY (chain_id, pool_id, day, scope, subject)
);

-- Webhooks to deliver, written in the statement that makes the change. Of one transaction and target only the lowest
-- revision that is neither delivered nor a dead letter may be sent. A delivery stores the columns that can change; the
-- rest is read from relayer_txs when it is delivered.
CREATE TABLE relayer_deliveries (
    -- Columns that change come first: Postgres logs an update in the same page from the first to the last byte that
    -- differs. A claim changes no column of an index.
    claimed_until   timestamptz NOT NULL DEFAULT '-infinity',
    claimant        uuid,                               -- the process that has claimed the delivery
    attempts        integer     NOT NULL DEFAULT 0,     -- claims so far
    retry_until     timestamptz,                        -- counted from the first claim; null before
    state           text        NOT NULL DEFAULT 'due' CHECK (state IN ('due', 'delivered', 'dead_letter')),
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
-- Deliveries that may be claimed. The queries of a claim can use no other index.
CREATE INDEX relayer_deliveries_due ON relayer_deliveries (chain_id, pool_id, target, next_at) WHERE state = 'due';
CREATE INDEX relayer_deliveries_dead ON relayer_deliveries (created_at) WHERE state = 'dead_letter';

-- +goose Down
DROP TABLE relayer_deliveries, relayer_budgets, relayer_idempotency, relayer_attempts, relayer_queues, relayer_txs, relayer_timers,
    relayer_keys, relayer_origins, relayer_pools, relayer_chains;
DROP FUNCTION relayer_queue_inserted, relayer_queue_updated, relayer_queue_deleted;
