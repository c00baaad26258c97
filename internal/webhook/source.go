package webhook

import "github.com/rollcall-dev/rollcall/internal/outbox"

// Source describes the deliveries of an owner: their table, and how a row becomes a webhook. The owner creates the table and writes
// the rows, in the database transactions of its changes. All strings are SQL from the owner's code, and no part of them comes from
// outside.
//
// A row's lane is the name of its target, after Prefix. Its subject is what it is about and the target: of one subject and target
// only the lowest unfinished revision is sent. If operators list the deliveries of a subject, the table has these columns besides the
// template's, and an index that begins with the first one:
//
//	about    uuid    -- the transaction, or another thing that changed
//	revision integer -- of that
type Source struct {
	// Table is the owner's table. Config.Retention replaces Table.KeepDone.
	Table outbox.Table
	// Prefix precedes the target's name in the lanes of the owner's rows, if the table also holds those of others. It ends with a
	// slash. Default: none.
	Prefix string
	// Read returns the event of a claimed delivery, and its payload, to be encoded as JSON. After an error the delivery is a dead
	// letter at once, because every retry would fail as well.
	Read func(outbox.Work) (event string, payload any, err error)
	// Held reports that a claimed delivery must not be sent yet. The Deliverer gives it back, and claims nothing for some seconds.
	// Default: none is.
	Held func(outbox.Work) bool
	// Delivered is called for each delivery that its target has accepted, also if the result is lost later. Default: nothing is.
	Delivered func(outbox.Work)
	// Partitions and Partition restrict the process to the rows whose partition number modulo Partitions is Partition. Default: all.
	Partitions, Partition int
}
