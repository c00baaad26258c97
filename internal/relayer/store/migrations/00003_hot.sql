-- +goose Up

-- A change of a row's status writes no index as long as the new version finds room in the page of the old one, and no
-- index has a column that changes with it. A row changes thrice: half of each page is for that, and what the versions
-- before the last took is free again by then.
ALTER TABLE relayer_txs SET (fillfactor = 45);
-- This one had updated_at, though of top-ups alone, which is enough.
DROP INDEX relayer_txs_topups;
CREATE INDEX relayer_txs_topups ON relayer_txs (chain_id, to_address) WHERE kind = 'topup';

-- +goose Down
DROP INDEX relayer_txs_topups;
CREATE INDEX relayer_txs_topups ON relayer_txs (chain_id, to_address, updated_at) WHERE kind = 'topup';
ALTER TABLE relayer_txs SET (fillfactor = 80);
