package admin

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/escrow/store"
	"github.com/rollcall-dev/rollcall/internal/outbox/deadletter"
	"github.com/rollcall-dev/rollcall/internal/platform/postgres"
)

// letters describes the messages to operators. A message's first member with a name is its own, because the arguments come last. Its
// transaction is the chain's, and so none that an operator can select by. A message that was published is only sent again by [Admin.Replay], which
// marks it as a replay.
var letters = deadletter.Source{
	Of: "escrow-events", Table: store.Outbox, AnyPrefix: true, DeadOnly: true, OfTransaction: `$1::uuid IS NULL`,
	Transaction: `substring(convert_from(e.payload, 'UTF8') FROM '"tx_hash":"(0x[0-9a-f]{64})"')`,
	Event:       `coalesce(substring(convert_from(e.payload, 'UTF8') FROM '"type":"([^"\\]*)"'), '')`,
	Revision:    `coalesce(substring(convert_from(e.payload, 'UTF8') FROM '"revision":([0-9]{1,9})')::int, 0)`,
}

// DeadLetters returns the monitor's kind of entries in a database, which it does not close: the messages of all chains. Opening it fails
// with a [deadletter.AbsentError] if the database has no monitor, and with a [postgres.OlderError] or a [postgres.NewerError].
func DeadLetters(db *pgxpool.Pool) deadletter.Domain {
	return deadletter.Domain{Kinds: []string{letters.Of}, Open: func(ctx context.Context) ([]deadletter.Kind, error) {
		for _, m := range Migrations() {
			err := postgres.Check(ctx, db, m)
			if older, is := errors.AsType[*postgres.OlderError](err); is && older.Database == 0 {
				return nil, &deadletter.AbsentError{Err: err}
			}
			if err != nil {
				return nil, err
			}
		}
		l, err := deadletter.New(db, letters)
		if err != nil {
			return nil, err
		}
		none := func(context.Context, string) (uuid.UUID, bool, error) { return uuid.Nil, false, nil }
		return []deadletter.Kind{{Letters: l, Find: none}}, nil
	}}
}
