-- +goose Up

-- Relayers' ids of a transaction's former submissions: those that it was withdrawn from, and acceptances that came when it was at another
-- relayer, or final. As long as one is not settled, its relayer may execute it.
CREATE TABLE relay_late_acceptances (
    tx          uuid        NOT NULL REFERENCES relay_transactions ON DELETE CASCADE,
    pool        text        NOT NULL, -- the relayer's idempotency scope; without one the relayer
    relayer_tx  text        NOT NULL,
    relayer     text        NOT NULL,
    relayer_url text        NOT NULL,
    relayer_id  text        NOT NULL,
    scope       text        NOT NULL,
    settled     boolean     NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    check_at    timestamptz NOT NULL DEFAULT now(), -- when the reconciler asks its relayer next
    checks      integer     NOT NULL DEFAULT 0,
    PRIMARY KEY (tx, pool, relayer_tx)
);
CREATE INDEX relay_late_acceptances_open ON relay_late_acceptances (tx) WHERE NOT settled;
CREATE INDEX relay_late_acceptances_relayer_tx ON relay_late_acceptances (relayer_tx);

-- +goose Down
DROP TABLE relay_late_acceptances;
