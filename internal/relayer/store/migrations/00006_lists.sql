-- +goose Up

-- What lists are filtered by: what has ended otherwise than it was meant to. That is little of a long history. Not the status
-- itself, which each change would have to write into the index anew; this changes once, with open.
ALTER TABLE relayer_txs ADD COLUMN amiss boolean NOT NULL GENERATED ALWAYS AS (NOT open AND status <> 'confirmed') STORED;
CREATE INDEX relayer_txs_amiss ON relayer_txs (id) WHERE amiss;
-- These cost nothing where the callers name none.
CREATE INDEX relayer_txs_method ON relayer_txs (method, id) WHERE method <> '';
CREATE INDEX relayer_txs_orderbook ON relayer_txs (orderbook, id) WHERE orderbook <> '';
CREATE INDEX relayer_txs_trace ON relayer_txs (trace_id) WHERE trace_id <> '';

-- +goose Down
DROP INDEX relayer_txs_trace;
DROP INDEX relayer_txs_orderbook;
DROP INDEX relayer_txs_method;
ALTER TABLE relayer_txs DROP COLUMN amiss;
