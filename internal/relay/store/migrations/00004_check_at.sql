-- +goose Up
COMMENT ON COLUMN relay_transactions.check_at IS 'time of the last report, change or check: the next check comes a pause later, which is a setting of the reconciler';

-- +goose Down
COMMENT ON COLUMN relay_transactions.check_at IS NULL;
