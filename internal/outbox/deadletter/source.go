package deadletter

import "github.com/rollcall-dev/rollcall/internal/outbox"

// Source describes a table to operators. All strings are SQL from the domain's code, and no part of them comes from outside. A row is
// named e.
type Source struct {
	// Of names the kind of entries, such as "queue".
	Of string
	// Table is the domain's table.
	Table outbox.Table
	// Prefix precedes the names of receivers in the lanes, if the table also holds the entries of others. Default: none.
	Prefix string
	// AnyPrefix means that each lane is the name of a receiver behind a slash, with any prefix. Operators see the lane, and select by the
	// name alone, too: metrics and alerts have only that. No name has a slash. Default: the lane without Prefix is the name.
	AnyPrefix bool
	// Transaction is an expression for the id of a row's transaction as text, null if it has none.
	Transaction string
	// OfTransaction is the condition for the rows of the transaction $1, a uuid. An index finds them.
	OfTransaction string
	// DeadOnly means that Replay takes no finished entries: they would follow newer ones of their subject, and the receiver could not see
	// that they are repeated. Default: it takes those that are given by their ids.
	DeadOnly bool
	// Event is an expression for the name of a webhook's event, and Revision one for the transaction's revision. Default: none.
	Event, Revision string
}
