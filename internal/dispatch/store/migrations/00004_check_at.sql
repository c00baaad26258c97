-- +goose Up
COMMENT ON COLUMN relay_transactions.check_at IS 'time of the last report, change or check: the next check comes a pause later, which is a setting of the reconciler';
-- Former builds stored the time of the next check.
UPDATE relay_transactions SET check_at = now() WHERE open AND check_at > now();

-- +goose Down
COMMENT ON COLUMN relay_transactions.check_at IS NULL;
