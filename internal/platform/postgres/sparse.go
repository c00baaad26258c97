package postgres

import "github.com/jackc/pgx/v5"

// Sparse is a row whose nulls leave their fields at the zero value, such as one of an outer join. Read it with
// pgx.RowToStructByName.
type Sparse struct{ pgx.CollectableRow }

// Scan skips the fields of nulls.
func (r Sparse) Scan(fields ...any) error {
	for i, value := range r.RawValues() {
		if value == nil {
			fields[i] = nil
		}
	}
	return r.CollectableRow.Scan(fields...)
}
