-- +goose Up

-- When an operator took the row back after a reorganization that was deeper than the blocks that count as final; null: never.
ALTER TABLE relayer_txs ADD COLUMN taken_back_at timestamptz;
-- A key gets one top-up at a time. Several that were final may be taken back together.
DROP INDEX relayer_txs_topup;
CREATE UNIQUE INDEX relayer_txs_topup ON relayer_txs (chain_id, to_address) WHERE kind = 'topup' AND open AND taken_back_at IS NULL;

-- +goose Down
DROP INDEX relayer_txs_topup;
-- Of several open top-ups of one key only the oldest stays open.
UPDATE relayer_txs t SET open = false, status = 'failed', status_reason = 'taken back by a reorganization' WHERE kind = 'topup' AND open
    AND EXISTS (SELECT FROM relayer_txs o WHERE o.kind = 'topup' AND o.open AND o.chain_id = t.chain_id AND o.to_address = t.to_address AND o.id < t.id);
CREATE UNIQUE INDEX relayer_txs_topup ON relayer_txs (chain_id, to_address) WHERE kind = 'topup' AND open;
ALTER TABLE relayer_txs DROP COLUMN taken_back_at;
