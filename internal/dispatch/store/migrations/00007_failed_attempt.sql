-- +goose Up

-- The last attempt whose request the relayer has answered with a 500: it does not process it any more, and may have stored it. The number
-- is a past one as soon as any consumer begins another attempt.
ALTER TABLE relay_transactions ADD COLUMN failed_attempt integer;

-- +goose Down
ALTER TABLE relay_transactions DROP COLUMN failed_attempt;
