-- +goose Up
-- The database transaction that has recorded under which timeline a pool's nonces are given out. A dump is restored by another one, so
-- that xmin of the row differs: nonces were given out since that the store does not have.
CREATE TABLE relayer_origins (
    chain_id bigint NOT NULL,
    pool_id  text   NOT NULL,
    origin   bigint NOT NULL,
    PRIMARY KEY (chain_id, pool_id)
);
INSERT INTO relayer_origins SELECT chain_id, pool_id, pg_current_xact_id()::xid::text::bigint FROM relayer_pools;

-- +goose Down
DROP TABLE relayer_origins;
