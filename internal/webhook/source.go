package webhook

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Source describes the deliveries of an owner: their table, and how a row becomes a webhook. The owner creates the table
// and writes the rows, in the database transactions of its changes. All strings are SQL from the owner's code, and no
// part of them comes from outside.
//
// The table has the columns of relay_deliveries, in the relay path's migration, except payload, and the same indexes; that of due
// rows begins with the columns of Scope. It may have more columns, for the owner's expressions. In these c is the delivery's row.
type Source struct {
	// Table is the table's name.
	Table string
	// Scope selects the owner's rows if the table also holds those of others. Default: all rows.
	Scope []ScopeColumn
	// Event is an expression for the name of the event.
	Event string
	// Transaction is an expression for the id of the event's transaction. It is null for an event of no transaction.
	Transaction string
	// Columns are the expressions, separated by commas, that Scan reads from a claimed row. They may use tables of Joins.
	Columns string
	// Joins follow the claimed rows in FROM. Default: none. Each must be a LEFT JOIN LATERAL of at most one row, found by
	// an index: a claim of no delivery is one row of nulls, and a turn's plans neither sort nor hash (see turnStatements).
	Joins string
	// Scan reads a claimed row that has Columns only. It runs in a turn, so it does no more than that. Its error fails the
	// turn, and the turn's claims end by themselves; unreadable contents are an error of the Payload instead.
	Scan func(pgx.CollectableRow) (Payload, error)
}

// ScopeColumn is a column that has one value in all rows of a [Source].
type ScopeColumn struct {
	Name  string
	Value any
}

// Payload returns the payload of a claimed delivery, to be encoded as JSON. It is called outside of the turn, once for a
// claim. After an error the delivery is a dead letter at once, because every retry would fail as well.
type Payload func() (any, error)

// validate returns all problems, joined.
func (s Source) validate() error {
	var errs []error
	for _, field := range []struct{ name, text string }{
		{"table", s.Table}, {"event", s.Event}, {"transaction", s.Transaction}, {"columns", s.Columns},
	} {
		if field.text == "" {
			errs = append(errs, fmt.Errorf("the source of webhooks has no %s", field.name))
		}
	}
	for _, c := range s.Scope {
		if value := reflect.ValueOf(c.Value); !value.IsValid() || value.IsZero() {
			errs = append(errs, fmt.Errorf("the source of webhooks has no value of %s", c.Name))
		}
	}
	if s.Scan == nil {
		errs = append(errs, errors.New("the source of webhooks has no function to scan a row"))
	}
	return errors.Join(errs...)
}

// scope returns the condition of Scope, with " AND " at its end; "" without a Scope. prefix is that of a column, such as
// "d.". The values are the statement's parameters after the first n; see scopeArgs.
func (s Source) scope(prefix string, n int) string {
	var condition strings.Builder
	for i, c := range s.Scope {
		fmt.Fprintf(&condition, "%s%s = $%d AND ", prefix, c.Name, n+1+i)
	}
	return condition.String()
}

// scopeArgs returns args and the values of Scope.
func (s Source) scopeArgs(args ...any) []any {
	for _, c := range s.Scope {
		args = append(args, c.Value)
	}
	return args
}

// rowAfter is a row without its first columns.
type rowAfter struct {
	pgx.CollectableRow
	first int
}

// FieldDescriptions returns those of the remaining columns.
func (r rowAfter) FieldDescriptions() []pgconn.FieldDescription {
	return r.CollectableRow.FieldDescriptions()[r.first:]
}

// RawValues returns those of the remaining columns.
func (r rowAfter) RawValues() [][]byte { return r.CollectableRow.RawValues()[r.first:] }

// Values returns those of the remaining columns.
func (r rowAfter) Values() ([]any, error) {
	values, err := r.CollectableRow.Values()
	if err != nil {
		return nil, err
	}
	return values[r.first:], nil
}

// Scan reads the remaining columns.
func (r rowAfter) Scan(fields ...any) error {
	all := make([]any, r.first+len(fields))
	copy(all[r.first:], fields)
	return r.CollectableRow.Scan(all...)
}
