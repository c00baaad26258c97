package store

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

// columns are columns that a statement writes, from an array of each.
type columns []relayer.Column

var (
	newTransaction columns = relayer.Columns[relayer.TransactionRow]("new")
	contents       columns = relayer.Columns[relayer.TransactionRow]("contents")
	newAttempt     columns = relayer.Columns[relayer.AttemptRow]("new")
)

// each formats each column, and joins the results.
func (c columns) each(format func(i int, one relayer.Column) string) string {
	all := make([]string, len(c))
	for i, one := range c {
		all[i] = format(i, one)
	}
	return strings.Join(all, ", ")
}

func (c columns) names() string {
	return c.each(func(_ int, one relayer.Column) string { return one.Name })
}

// rows returns a subquery r with the columns. Its parameters, the result of arrays, begin at first.
func (c columns) rows(first int) string {
	return "(SELECT " + c.each(func(_ int, one relayer.Column) string {
		if one.Numeric {
			return one.Name + "::numeric"
		}
		return one.Name
	}) + " FROM unnest(" + c.each(func(i int, one relayer.Column) string {
		name, _ := array(one.Field, nil)
		return fmt.Sprintf("$%d::%s[]", first+i, name)
	}) + ") AS given (" + c.names() + ")) AS r"
}

// arrays returns the parameters of rows: for each column its values in all rows.
func arrays[Row any](c columns, rows ...*Row) []any {
	structs, arrays := make([]reflect.Value, len(rows)), make([]any, len(c))
	for i, row := range rows {
		structs[i] = reflect.ValueOf(row).Elem()
	}
	for i, one := range c {
		_, arrays[i] = array(one.Field, structs)
	}
	return arrays
}

// array returns the values of a field, and the name of their type in SQL. It avoids defined types, because the driver is slow
// with them.
func array(field reflect.StructField, rows []reflect.Value) (name string, values any) {
	switch field.Type {
	case reflect.TypeFor[uuid.UUID]():
		return "uuid", pick(field, rows, func(v reflect.Value) [16]byte { return [16]byte(v.Bytes()) })
	case reflect.TypeFor[relayer.Timestamp]():
		return "timestamptz", pick(field, rows, func(v reflect.Value) *time.Time { return timeOrNil(v.Addr().Interface().(*relayer.Timestamp).Time) })
	case reflect.TypeFor[*string]():
		return "text", pick(field, rows, func(v reflect.Value) *string { return *v.Addr().Interface().(**string) })
	case reflect.TypeFor[*uint64]():
		return "bigint", pick(field, rows, func(v reflect.Value) *int64 {
			if v.IsNil() {
				return nil
			}
			return new(int64(v.Elem().Uint()))
		})
	}
	switch field.Type.Kind() {
	case reflect.String:
		return "text", pick(field, rows, reflect.Value.String)
	case reflect.Slice:
		return "bytea", pick(field, rows, reflect.Value.Bytes)
	case reflect.Int:
		return "bigint", pick(field, rows, reflect.Value.Int)
	default:
		return "bigint", pick(field, rows, func(v reflect.Value) int64 { return int64(v.Uint()) })
	}
}

func pick[T any](field reflect.StructField, rows []reflect.Value, value func(reflect.Value) T) []T {
	values := make([]T, len(rows))
	for i, row := range rows {
		values[i] = value(row.FieldByIndex(field.Index))
	}
	return values
}

var (
	scanTransaction = rowTo((*relayer.TransactionRow).Transaction)
	scanAttempt     = rowTo((*relayer.AttemptRow).Attempt)
	scanKey         = rowTo((*keyRow).key)
)

// rowTo reads a row by the names of its columns, and converts it.
func rowTo[Row, T any](convert func(*Row) T) pgx.RowToFunc[T] {
	return func(row pgx.CollectableRow) (v T, err error) {
		r, err := pgx.RowToAddrOfStructByNameLax[Row](postgres.Sparse{CollectableRow: row})
		if err == nil {
			v = convert(r)
		}
		return v, err
	}
}

// querier is the database or a transaction.
type querier interface {
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
}

// collect returns the rows of a query. doing describes it in an error.
func collect[T any](ctx context.Context, db querier, doing string, to pgx.RowToFunc[T], query string, args ...any) ([]T, error) {
	rows, _ := db.Query(ctx, query, args...) // CollectRows returns the same error
	all, err := pgx.CollectRows(rows, to)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return all, nil
}
