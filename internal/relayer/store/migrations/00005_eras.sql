-- +goose Up

-- A chain that lost its history begins another era. Nonces, and with them hashes, come again in it, and nothing has to be
-- rewritten for that, however long the history is.
ALTER TABLE relayer_chains ADD COLUMN era integer NOT NULL DEFAULT 0;
ALTER TABLE relayer_txs ADD COLUMN era integer NOT NULL DEFAULT 0; -- in which it got its nonce
ALTER TABLE relayer_txs DROP CONSTRAINT relayer_txs_nonce;
ALTER TABLE relayer_txs ADD CONSTRAINT relayer_txs_nonce UNIQUE (chain_id, relayer_address, nonce, era);

-- The same transaction at the same nonce of the same key is the same bytes, in any era.
DROP INDEX relayer_attempts_hash;
CREATE UNIQUE INDEX relayer_attempts_hash ON relayer_attempts (tx_hash, tx_id);

-- +goose Down
DROP INDEX relayer_attempts_hash;
DELETE FROM relayer_attempts a USING relayer_attempts later
    WHERE a.tx_hash = later.tx_hash AND a.chain_id = later.chain_id AND a.created_at < later.created_at;
CREATE UNIQUE INDEX relayer_attempts_hash ON relayer_attempts (chain_id, tx_hash);
UPDATE relayer_txs t SET nonce = NULL FROM relayer_chains c WHERE c.chain_id = t.chain_id AND t.era < c.era AND t.nonce IS NOT NULL;
ALTER TABLE relayer_txs DROP CONSTRAINT relayer_txs_nonce;
ALTER TABLE relayer_txs ADD CONSTRAINT relayer_txs_nonce UNIQUE (chain_id, relayer_address, nonce);
ALTER TABLE relayer_txs DROP COLUMN era;
ALTER TABLE relayer_chains DROP COLUMN era;
