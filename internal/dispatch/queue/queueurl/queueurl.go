package queueurl

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rollcall-dev/rollcall/internal/dispatch/queue"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/rabbitmq"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/sqs"
	"github.com/rollcall-dev/rollcall/internal/dispatch/queue/table"
)

// Postgres is the URL of the queue in the database of the transactions. An empty URL means the same.
const Postgres = "postgres"

// errURL does not contain the URL, which may hold a password.
var errURL = errors.New("queue URL: expected " + Postgres + " (the database of the transactions), sqs://… or amqps://…")

// Check returns the problems of a URL, without its contents. It does not connect.
func Check(url string) error {
	switch scheme, _, _ := strings.Cut(url, ":"); {
	case url == "" || url == Postgres:
		return nil
	case scheme == "sqs":
		return sqs.CheckURL(url)
	case scheme == "amqp" || scheme == "amqps":
		return rabbitmq.CheckURL(url)
	}
	return errURL
}

// Open returns the queue of a URL. db is the database of the transactions, with the table of [queue.Migrations]. Open
// does not connect: a backend that is unavailable shows in the queue's Health. The caller closes the queue, and then db.
func Open(db *pgxpool.Pool, url string, cfg queue.Config) (queue.Queue, error) {
	switch scheme, _, _ := strings.Cut(url, ":"); {
	case url == "" || url == Postgres:
		return nilOnError(table.New(db, cfg))
	case scheme == "sqs":
		return nilOnError(sqs.New(db, url, cfg))
	case scheme == "amqp" || scheme == "amqps":
		return nilOnError(rabbitmq.New(db, url, cfg))
	}
	return nil, errURL
}

// nilOnError keeps a nil pointer from becoming a queue that is not nil.
func nilOnError[Q queue.Queue](q Q, err error) (queue.Queue, error) {
	if err != nil {
		return nil, err
	}
	return q, nil
}
