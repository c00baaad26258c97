-- +goose Up

-- From which scope a transaction was withdrawn the last time, and when: for a while it does not return there.
ALTER TABLE relay_transactions ADD COLUMN withdrawn_from text NOT NULL DEFAULT '', ADD COLUMN withdrawn_at timestamptz;

-- +goose Down
ALTER TABLE relay_transactions DROP COLUMN withdrawn_from, DROP COLUMN withdrawn_at;
