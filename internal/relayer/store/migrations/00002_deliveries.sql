-- +goose Up

ALTER TABLE relayer_deliveries
    -- Who is at it, until next_at; empty: nobody, and next_at is when it may be tried again.
    ADD COLUMN claimant    text NOT NULL DEFAULT '',
    -- When it is given up, counted from its first claim; null before.
    ADD COLUMN retry_until timestamptz;

-- What may be claimed, by those who claim: pool by pool and target by target, so that one with much to do hides no other.
DROP INDEX relayer_deliveries_due;
CREATE INDEX relayer_deliveries_due ON relayer_deliveries (chain_id, pool_id, target, next_at) WHERE state = 'due';

-- What is old. Rows lie in the order of their age, and this index costs their writers next to nothing.
CREATE INDEX relayer_deliveries_age ON relayer_deliveries USING brin (created_at);

-- +goose Down
DROP INDEX relayer_deliveries_age;
DROP INDEX relayer_deliveries_due;
ALTER TABLE relayer_deliveries DROP COLUMN claimant, DROP COLUMN retry_until;
CREATE INDEX relayer_deliveries_due ON relayer_deliveries (next_at) WHERE state = 'due';
