-- +goose Up

-- When an attempt that nodes refused or lost may be sent again, by the database's clock, and after how many sends in vain. No
-- index has either column, and a tenth of each page is left for the new versions of rows.
ALTER TABLE relayer_attempts
    ADD COLUMN resends      integer NOT NULL DEFAULT 0,
    ADD COLUMN next_send_at timestamptz;
ALTER TABLE relayer_attempts SET (fillfactor = 90);

-- +goose Down
ALTER TABLE relayer_attempts RESET (fillfactor);
ALTER TABLE relayer_attempts DROP COLUMN resends, DROP COLUMN next_send_at;
