package rabbitmq

import (
	"errors"
	"net/url"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// defaultQueue is the name of the queue if the URL has none.
const defaultQueue = "rollcall-relay"

// names are the names of the queues.
type names struct{ queue, dead string }

// CheckURL returns the problem of a URL, without its contents. It does not connect.
func CheckURL(text string) error {
	_, _, err := parse(text)
	return err
}

// parse returns the URL for the AMQP library and the names of the queues. Its errors do not contain the URL.
func parse(text string) (broker string, n names, err error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "amqp" && u.Scheme != "amqps" || u.Host == "" {
		return "", n, errors.New("queue URL: expected amqp://user:password@host:port/vhost?queue=name, with special characters of the password percent-encoded")
	}
	params, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", n, errors.New("queue URL: the parameters are malformed")
	}
	n.queue = defaultQueue
	if params.Has("queue") {
		n.queue = params.Get("queue")
	}
	if n.queue == "" || len(n.queue) > 200 || strings.HasPrefix(n.queue, "amq.") {
		return "", n, errors.New("queue URL: queue: expected a name of 1 to 200 bytes that does not begin with amq")
	}
	n.dead = n.queue + ".dead"
	params.Del("queue")
	u.RawQuery = params.Encode()
	if _, err := amqp.ParseURI(u.String()); err != nil {
		return "", n, errors.New("queue URL: the AMQP library rejects it")
	}
	return u.String(), n, nil
}
