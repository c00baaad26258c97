-- +goose Up

-- How many transactions wait for each target (the pool, or one key). Triggers keep it, so that no statement can forget to:
-- acceptance reads one row a target here, where it would count the whole queue under the locks of the keys. There is no
-- check that waiting is positive: a wrong count may admit a little more, and must never refuse a cancelation.
CREATE TABLE relayer_queues (
    chain_id bigint NOT NULL,
    pool_id  text   NOT NULL,
    target   text   NOT NULL,
    waiting  bigint NOT NULL,
    PRIMARY KEY (chain_id, pool_id, target)
) WITH (fillfactor = 20); -- each change rewrites the row: room for that in its page

INSERT INTO relayer_queues SELECT chain_id, pool_id, target, count(*) FROM relayer_txs WHERE open AND nonce IS NULL GROUP BY 1, 2, 3;

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

-- A target's oldest transaction, its cheapest one, and the one with the smallest reserve, each found without reading the rest.
CREATE INDEX relayer_txs_waiting ON relayer_txs (chain_id, pool_id, target, id) WHERE open AND nonce IS NULL;
CREATE INDEX relayer_txs_waiting_cost ON relayer_txs (chain_id, pool_id, target, (value_wei + coalesce(reserve_wei, 0))) WHERE open AND nonce IS NULL;
CREATE INDEX relayer_txs_waiting_reserve ON relayer_txs (chain_id, pool_id, target, (coalesce(reserve_wei, 0))) WHERE open AND nonce IS NULL;

-- +goose Down
DROP INDEX relayer_txs_waiting_reserve;
DROP INDEX relayer_txs_waiting_cost;
DROP INDEX relayer_txs_waiting;
DROP TRIGGER relayer_queue_deleted ON relayer_txs;
DROP TRIGGER relayer_queue_updated ON relayer_txs;
DROP TRIGGER relayer_queue_inserted ON relayer_txs;
DROP FUNCTION relayer_queue_deleted();
DROP FUNCTION relayer_queue_updated();
DROP FUNCTION relayer_queue_inserted();
DROP TABLE relayer_queues;
