package rabbitmq

import (
	"errors"
	"net/url"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// defaultQueue is the name of the queue if the URL has none.
const defaultQueue = "rollcall-relay"

// CheckURL returns the problem of a URL, without its contents. It does not connect.
func CheckURL(text string) error {
	_, _, err := parse(text)
	return err
}

// parse returns the URL for the AMQP library and the name of the queue. Its errors do not contain the URL.
func parse(text string) (address, queue string, err error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "amqp" && u.Scheme != "amqps" || u.Host == "" {
		return "", "", errors.New("queue URL: expected amqp://user:password@host:port/vhost?queue=name, with special characters of the password percent-encoded")
	}
	params, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", "", errors.New("queue URL: the parameters are malformed")
	}
	queue = defaultQueue
	if params.Has("queue") {
		queue = params.Get("queue")
	}
	if queue == "" || len(queue) > 200 || strings.HasPrefix(queue, "amq.") {
		return "", "", errors.New("queue URL: queue: expected a name of 1 to 200 bytes that does not begin with amq")
	}
	params.Del("queue")
	u.RawQuery = params.Encode()
	if _, err := amqp.ParseURI(u.String()); err != nil {
		return "", "", errors.New("queue URL: the AMQP library rejects it")
	}
	return u.String(), queue, nil
}
