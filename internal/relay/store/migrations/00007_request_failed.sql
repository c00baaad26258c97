-- +goose Up

-- The relayer has answered the request of the current attempt with a 500: it does not process it any more, and may have stored it.
ALTER TABLE relay_transactions ADD COLUMN request_failed boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE relay_transactions DROP COLUMN request_failed;
