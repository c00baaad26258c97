-- +goose Up

-- Who follows the chain, and under which timeline nonces were given out, is each pool's own: a pool's tracker follows its own
-- keys, and knows what nodes have of them alone.
ALTER TABLE relayer_pools
    -- The timeline of Postgres under which nonces were given out last. Another one means that the server failed over, and
    -- may have lost what it had acknowledged.
    ADD COLUMN timeline      text,
    -- The process that follows the chain for the pool, until when, and a number that grows with each. Two that believe it at
    -- once do the same work twice and nothing worse: every change compares before it writes.
    ADD COLUMN tracker       text        NOT NULL DEFAULT '',
    ADD COLUMN tracker_epoch bigint      NOT NULL DEFAULT 0,
    ADD COLUMN tracker_until timestamptz NOT NULL DEFAULT '-infinity';
UPDATE relayer_pools p SET timeline = c.timeline, tracker = c.tracker, tracker_epoch = c.tracker_epoch, tracker_until = c.tracker_until
    FROM relayer_chains c WHERE c.chain_id = p.chain_id;
-- A pool whose chain nobody knows yet has given out nothing.
UPDATE relayer_pools SET timeline = substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) WHERE timeline IS NULL;
ALTER TABLE relayer_pools ALTER COLUMN timeline SET NOT NULL;
ALTER TABLE relayer_chains DROP COLUMN timeline, DROP COLUMN tracker, DROP COLUMN tracker_epoch, DROP COLUMN tracker_until;

-- +goose Down
ALTER TABLE relayer_chains
    ADD COLUMN timeline      text,
    ADD COLUMN tracker       text        NOT NULL DEFAULT '',
    ADD COLUMN tracker_epoch bigint      NOT NULL DEFAULT 0,
    ADD COLUMN tracker_until timestamptz NOT NULL DEFAULT '-infinity';
-- The oldest timeline of its pools, so that one which was not reconciled yet still is. Timelines sort by their age.
UPDATE relayer_chains c SET timeline = coalesce((SELECT min(p.timeline) FROM relayer_pools p WHERE p.chain_id = c.chain_id),
    substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8));
ALTER TABLE relayer_chains ALTER COLUMN timeline SET NOT NULL;
ALTER TABLE relayer_pools DROP COLUMN timeline, DROP COLUMN tracker, DROP COLUMN tracker_epoch, DROP COLUMN tracker_until;
