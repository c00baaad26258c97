-- +goose Up

-- One row a chain: what it is recognised by, and who follows it.
CREATE TABLE relayer_chains (
    chain_id      bigint PRIMARY KEY,
    genesis_hash  text   NOT NULL,
    -- A block deeper than any reorganization. A node that does not have it has another history.
    anchor_number bigint NOT NULL DEFAULT 0,
    anchor_hash   text   NOT NULL,
    -- The timeline of Postgres under which nonces were given out last. Another one means that the server failed over, and
    -- may have lost what it had acknowledged.
    timeline      text   NOT NULL,
    -- The process that follows the chain, until when, and a number that grows with each. Two that believe it at once
    -- do the same work twice and nothing worse: every change compares before it writes.
    tracker       text        NOT NULL DEFAULT '',
    tracker_epoch bigint      NOT NULL DEFAULT 0,
    tracker_until timestamptz NOT NULL DEFAULT '-infinity'
);

-- One row a pool: what its relayers are configured with that an operator's command has to know.
CREATE TABLE relayer_pools (
    chain_id bigint NOT NULL,
    pool_id  text   NOT NULL,
    targets  text[] NOT NULL, -- names of the webhook targets that hear of each change
    PRIMARY KEY (chain_id, pool_id)
);

-- The row of a key is its lock: nonces are handed out under it, in the order of addresses where several are taken.
CREATE TABLE relayer_keys (
    id              bigint  GENERATED ALWAYS AS IDENTITY UNIQUE,
    chain_id        bigint  NOT NULL,
    address         text    NOT NULL CHECK (address ~ '^0x[0-9a-f]{40}$'),
    pool_id         text    NOT NULL,
    enabled         boolean NOT NULL DEFAULT true,
    disabled_reason text    NOT NULL DEFAULT '',
    disabled_until  timestamptz,                -- not looked into before; null: at each look
    disabled_checks integer NOT NULL DEFAULT 0, -- looks that left it disabled
    -- It funds the others and takes nobody's transactions.
    funding         boolean NOT NULL DEFAULT false,
    paused          boolean NOT NULL DEFAULT false,
    draining        boolean NOT NULL DEFAULT false,
    stuck_since     timestamptz,
    next_nonce      bigint  NOT NULL CHECK (next_nonce >= 0),
    pending_count   integer NOT NULL DEFAULT 0 CHECK (pending_count >= 0),
    last_error      text    NOT NULL DEFAULT '',
    last_seen_at    timestamptz,
    last_confirmed_at timestamptz,
    balance_wei     numeric(78, 0),
    balance_at      timestamptz,
    -- What the transactions that were pending when the balance was read, and all that came since, may cost.
    committed_wei   numeric NOT NULL DEFAULT 0,
    min_balance_wei numeric(78, 0) NOT NULL DEFAULT 0 CHECK (min_balance_wei >= 0),
    min_balance_own boolean NOT NULL DEFAULT false, -- set for this key; otherwise it follows the processes' setting
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id, address)
) WITH (fillfactor = 50); -- each claim rewrites the row: room for that in its page

CREATE TABLE relayer_txs (
    id              uuid    PRIMARY KEY,
    chain_id        bigint  NOT NULL,
    pool_id         text    NOT NULL,
    target          text    NOT NULL,
    caller          text    NOT NULL,
    kind            text    NOT NULL CHECK (kind IN ('transaction', 'noop', 'topup', 'foreign')),
    relayer_address text    CHECK (relayer_address ~ '^0x[0-9a-f]{40}$'),
    nonce           bigint  CHECK (nonce >= 0),
    tx_hash         text,
    status          text    NOT NULL CHECK (status IN ('allocated', 'broadcasted', 'unknown', 'mined', 'confirmed',
                        'reverted', 'dropped', 'replaced', 'failed', 'canceled', 'expired')),
    status_reason   text    NOT NULL DEFAULT '',
    -- Whether the status can still change. A column of its own, so that the indexes below do not have to be written
    -- anew with each change of status.
    open            boolean NOT NULL DEFAULT true,
    intent          text    NOT NULL DEFAULT 'send' CHECK (intent IN ('send', 'cancel', 'expire', 'fail')),
    intent_reason   text    NOT NULL DEFAULT '',
    -- When an operator last asked for a higher fee: whoever follows the chain signs an attempt that is younger.
    bump_asked_at   timestamptz,
    revision        integer NOT NULL DEFAULT 1,
    attempts        integer NOT NULL DEFAULT 0,

    to_address      text,
    value_wei       numeric(78, 0) NOT NULL DEFAULT 0 CHECK (value_wei >= 0),
    data            bytea   NOT NULL DEFAULT '',
    gas_limit       bigint  NOT NULL DEFAULT 0 CHECK (gas_limit >= 0),
    speed           text    NOT NULL DEFAULT '',
    -- What the caller asked for; what was offered stands in the attempts.
    gas_price       numeric(78, 0),
    max_fee         numeric(78, 0),
    max_priority    numeric(78, 0),
    valid_until     timestamptz,
    -- What its gas may cost by the fees at acceptance, and the days whose budgets that was taken from: of the caller and
    -- the trader, and of the key. Null where there was no budget.
    reserve_wei     numeric(78, 0),
    budget_day      date,
    key_budget_day  date,

    method          text    NOT NULL DEFAULT '',
    orderbook       text    NOT NULL DEFAULT '',
    trader          text    NOT NULL DEFAULT '',
    request_id      text    NOT NULL DEFAULT '',
    trace_id        text    NOT NULL DEFAULT '',

    block_number    bigint,
    block_hash      text,
    -- Of the block that it stands in: whether it succeeded, and what its bytes were for.
    succeeded       boolean,
    mined_purpose   text,
    gas_used        bigint,
    gas_price_paid  numeric(78, 0),
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    sent_at         timestamptz,
    mined_at        timestamptz,
    confirmed_at    timestamptz,

    CHECK ((nonce IS NULL) OR (relayer_address IS NOT NULL)),
    -- The reason for everything here.
    CONSTRAINT relayer_txs_nonce UNIQUE (chain_id, relayer_address, nonce)
) WITH (fillfactor = 80);

-- What can still change and has a nonce: what the tracker looks at.
CREATE INDEX relayer_txs_open ON relayer_txs (chain_id, relayer_address, nonce) WHERE open AND nonce IS NOT NULL;
-- What waits for a key, the oldest first.
CREATE INDEX relayer_txs_queue ON relayer_txs (chain_id, pool_id, id) WHERE open AND nonce IS NULL;
-- What an operator asked to have bumped.
CREATE INDEX relayer_txs_bump ON relayer_txs (chain_id, pool_id) WHERE open AND bump_asked_at IS NOT NULL;
CREATE INDEX relayer_txs_trader ON relayer_txs (trader, id) WHERE trader <> '';
CREATE INDEX relayer_txs_request ON relayer_txs (request_id) WHERE request_id <> '';
-- For what is old: rows stand in the order of their time, which this index costs next to nothing to know.
CREATE INDEX relayer_txs_age ON relayer_txs USING brin (created_at);
CREATE INDEX relayer_txs_expiry ON relayer_txs (valid_until) WHERE open AND valid_until IS NOT NULL;
-- A key gets one top-up at a time.
CREATE UNIQUE INDEX relayer_txs_topup ON relayer_txs (chain_id, to_address) WHERE kind = 'topup' AND open;
CREATE INDEX relayer_txs_topups ON relayer_txs (chain_id, to_address, updated_at) WHERE kind = 'topup';

-- Every signed transaction. A row here may have been sent, whatever the nodes said. (tx_id, attempt) is what two
-- processes that sign at once compete for: only who stored may broadcast.
CREATE TABLE relayer_attempts (
    tx_id        uuid    NOT NULL,
    attempt      integer NOT NULL CHECK (attempt > 0),
    chain_id     bigint  NOT NULL,
    address      text    NOT NULL,
    nonce        bigint  NOT NULL,
    purpose      text    NOT NULL CHECK (purpose IN ('send', 'replace', 'noop')),
    tx_hash      text    NOT NULL,
    raw          bytea   NOT NULL,
    max_fee      numeric(78, 0) NOT NULL,
    max_priority numeric(78, 0),
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_error   text    NOT NULL DEFAULT '',
    PRIMARY KEY (tx_id, attempt)
);
CREATE UNIQUE INDEX relayer_attempts_hash ON relayer_attempts (chain_id, tx_hash);

-- A caller's idempotency keys. They outlive the transactions' history, if that is kept shorter.
CREATE TABLE relayer_idempotency (
    chain_id   bigint NOT NULL,
    pool_id    text   NOT NULL,
    caller     text   NOT NULL,
    key        text   NOT NULL,
    body_hash  bytea  NOT NULL,
    tx_id      uuid   NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id, pool_id, caller, key)
);
CREATE INDEX relayer_idempotency_age ON relayer_idempotency USING brin (created_at);

-- What a day's transactions may cost and have cost, by API key, trader and relayer key; and what a day's top-ups gave away.
CREATE TABLE relayer_budgets (
    chain_id bigint NOT NULL,
    pool_id  text   NOT NULL,
    day      date   NOT NULL, -- UTC
    scope    text   NOT NULL CHECK (scope IN ('caller', 'trader', 'key', 'topup')),
    subject  text   NOT NULL,
    -- What was accepted counts with its gas limit and highest fee until it is final, then with what it has cost.
    spent_wei numeric(78, 0) NOT NULL CHECK (spent_wei >= 0),
    PRIMARY KEY (chain_id, pool_id, day, scope, subject)
);

-- Webhooks to deliver, written with the change that they tell of. Of one transaction and target only the lowest
-- revision that is neither delivered nor parked may be sent.
CREATE TABLE relayer_deliveries (
    id            uuid    PRIMARY KEY, -- the webhook's id: the same in each attempt
    chain_id      bigint  NOT NULL,
    pool_id       text    NOT NULL,
    target        text    NOT NULL, -- the name of a configured target
    event         text    NOT NULL,
    tx_id         uuid,             -- null for events of a relayer
    subject       text    NOT NULL, -- what is ordered: the transaction's id, or the relayer's
    revision      integer NOT NULL,
    snapshot      jsonb   NOT NULL, -- the row as it was, without its data
    state         text    NOT NULL DEFAULT 'due' CHECK (state IN ('due', 'delivered', 'parked')),
    attempts      integer NOT NULL DEFAULT 0,
    next_at       timestamptz NOT NULL DEFAULT now(), -- also the end of the claim of the one who is at it
    created_at    timestamptz NOT NULL DEFAULT now(),
    delivered_at  timestamptz,
    last_error    text    NOT NULL DEFAULT '',
    UNIQUE (subject, target, revision)
) WITH (fillfactor = 80);
CREATE INDEX relayer_deliveries_due ON relayer_deliveries (next_at) WHERE state = 'due';
CREATE INDEX relayer_deliveries_parked ON relayer_deliveries (created_at) WHERE state = 'parked';

-- +goose Down
DROP TABLE relayer_deliveries, relayer_budgets, relayer_idempotency, relayer_attempts, relayer_txs, relayer_keys, relayer_pools, relayer_chains;
