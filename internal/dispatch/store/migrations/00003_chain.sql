-- +goose Up

-- The chain that all transactions are for: one row, written by the first consumer or API that has a chain.
CREATE TABLE relay_chain (
    one      boolean     PRIMARY KEY DEFAULT true CHECK (one),
    chain_id bigint      NOT NULL CHECK (chain_id > 0),
    set_at   timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE relay_chain;
