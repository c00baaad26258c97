-- +goose Up

-- The change that a webhook of a client reports. Its JSON is written when it is sent.
ALTER TABLE relay_webhooks
    ADD COLUMN transaction_id text,        -- the id that the client uses
    ADD COLUMN status         text,
    ADD COLUMN status_reason  text,
    ADD COLUMN tx_hash        bytea,
    ADD COLUMN accepted_at    timestamptz, -- of the transaction
    ADD COLUMN changed_at     timestamptz;

UPDATE relay_webhooks w SET transaction_id = c.payload->>'transactionId', status = c.payload->>'status', status_reason = c.payload->>'reason',
    tx_hash = decode(substr(c.payload->>'hash', 3), 'hex'), accepted_at = (c.payload->>'createdAt')::timestamptz,
    changed_at = (c.payload->>'updatedAt')::timestamptz, payload = NULL
FROM (SELECT id, convert_from(payload, 'UTF8')::jsonb AS payload FROM relay_webhooks) AS c WHERE w.id = c.id;

-- +goose Down

UPDATE relay_webhooks SET payload = convert_to(jsonb_build_object('transactionId', transaction_id, 'hash', '0x' || encode(tx_hash, 'hex'),
    'status', status, 'reason', status_reason, 'revision', revision,
    'createdAt', to_char(accepted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
    'updatedAt', to_char(changed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))::text, 'UTF8')
WHERE transaction_id IS NOT NULL;

ALTER TABLE relay_webhooks DROP COLUMN transaction_id, DROP COLUMN status, DROP COLUMN status_reason, DROP COLUMN tx_hash,
    DROP COLUMN accepted_at, DROP COLUMN changed_at;
