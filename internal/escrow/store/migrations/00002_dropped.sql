-- +goose Up

-- Messages that an operator has dropped as dead letters, by event and lane: the newest of each. Their target does not have them.
CREATE TABLE escrow_dropped (
    event_id   text        COLLATE "C" NOT NULL,
    lane       text        COLLATE "C" NOT NULL,
    revision   integer     NOT NULL,
    dropped_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (event_id, lane)
);

-- +goose Down

DROP TABLE escrow_dropped;
