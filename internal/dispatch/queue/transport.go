package queue

import (
	"errors"
	"strings"

	"github.com/rollcall-dev/rollcall/internal/outbox"
	"github.com/rollcall-dev/rollcall/internal/outbox/rabbitmq"
	"github.com/rollcall-dev/rollcall/internal/outbox/sqs"
)

// Postgres is the URL of the queue without a broker. An empty URL means the same.
const Postgres = "postgres"

// errURL does not contain the URL, which may hold a password.
var errURL = errors.New("queue URL: expected " + Postgres + " (the database of the transactions), sqs://… or amqps://…")

// CheckURL returns the problems of a URL, without its contents. It does not connect.
func CheckURL(url string) error {
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

// transport carries ids through a broker.
type transport interface {
	outbox.Transport
	Close() error
}

// openTransport returns the transport of a URL, a nil interface for Postgres. It does not connect.
func openTransport(url string, handlers int) (transport, error) {
	if err := CheckURL(url); err != nil {
		return nil, err
	}
	switch scheme, _, _ := strings.Cut(url, ":"); scheme {
	case "sqs":
		return sqs.New(url)
	case "amqp", "amqps":
		return rabbitmq.New(url, handlers)
	}
	return nil, nil
}
