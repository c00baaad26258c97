-- +goose Up

ALTER TABLE relayer_keys
    -- When a process last registered the key, and when a round of the tracker began that has compared it with the chain. A
    -- process gives out none of its nonces before a comparison that is younger than its registration.
    ADD COLUMN registered_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN compared_at   timestamptz NOT NULL DEFAULT '-infinity',
    -- The hour in which the last gap was filled, and how many nonces were filled in it.
    ADD COLUMN filled_hour   timestamptz NOT NULL DEFAULT '-infinity',
    ADD COLUMN filled        integer     NOT NULL DEFAULT 0;

-- Since when something has been the same of a key, by the database's clock: ages that do not end with the process that
-- follows the chain.
CREATE TABLE relayer_timers (
    chain_id bigint      NOT NULL,
    address  text        NOT NULL,
    name     text        NOT NULL,
    mark     text        NOT NULL, -- what has been the same
    head     bigint      NOT NULL, -- the chain's head then
    since    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id, address, name)
) WITH (fillfactor = 50); -- a row is rewritten with each block

-- +goose Down
DROP TABLE relayer_timers;
ALTER TABLE relayer_keys DROP COLUMN registered_at, DROP COLUMN compared_at, DROP COLUMN filled_hour, DROP COLUMN filled;
