-- +goose Up

-- The clocks of relayers, as consumers measure them.
CREATE TABLE relay_relayer_clocks (
    relayer     text        PRIMARY KEY, -- the id of its service
    ahead       interval    NOT NULL,    -- of the consumers' clocks; negative: behind
    measured_at timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE relay_relayer_clocks;
