package sqs

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// location is a queue's URL in its parts.
type location struct {
	region   string
	endpoint string // empty: Amazon's
	queue    string // URL
	create   bool
}

// CheckURL returns the problems of a URL. It does not connect.
func CheckURL(text string) error {
	_, err := parse(text)
	return err
}

// parse reads a URL. Its errors do not contain the URL, which may hold a misplaced secret.
func parse(text string) (l location, err error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "sqs" || u.Host == "" {
		return l, errors.New("queue URL: expected sqs://sqs.<region>.amazonaws.com/<account>/<queue>")
	}
	var errs []error
	problem := func(format string, args ...any) { errs = append(errs, fmt.Errorf("queue URL: "+format, args...)) }
	if u.User != nil {
		problem("credentials come from the environment, not from the URL")
	}
	params, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		problem("the parameters are malformed")
	}
	for key, values := range params {
		value := values[len(values)-1]
		switch key {
		case "region":
			l.region = value
		case "endpoint":
			e, err := url.Parse(value)
			if err != nil || e.Host == "" || e.Scheme != "http" && e.Scheme != "https" || e.User != nil || strings.Trim(e.Path, "/") != "" {
				problem("endpoint: expected http://host:port or https://host:port")
				continue
			}
			l.endpoint = e.Scheme + "://" + e.Host
		case "create":
			if l.create, err = strconv.ParseBool(value); err != nil {
				problem("create: expected true or false")
			}
		case "dlq":
		default:
			problem("unknown parameter %q", key)
		}
	}
	if l.region == "" {
		l.region = regionOf(u.Hostname())
	}
	if l.region == "" {
		problem("the host names no region: add region=…")
	}
	switch name := path.Base(u.Path); {
	case strings.HasSuffix(name, ".fifo"):
		problem("a FIFO queue is not supported: use a standard queue, because the order is the table's")
	case strings.Count(strings.Trim(u.Path, "/"), "/") != 1 || !validName(name):
		problem("expected the path /<account>/<queue>")
	}
	scheme := "https"
	if before, _, ok := strings.Cut(l.endpoint, "://"); ok {
		scheme = before
	}
	l.queue = scheme + "://" + u.Host + u.Path
	return l, errors.Join(errs...)
}

// regionOf returns the region in a host such as sqs.eu-west-1.amazonaws.com.
func regionOf(host string) string {
	parts := strings.Split(host, ".")
	for i, part := range parts[:len(parts)-1] {
		if part == "sqs" && strings.Count(parts[i+1], "-") >= 2 {
			return parts[i+1]
		}
	}
	return ""
}

// validName reports whether a name is that of a standard queue.
func validName(name string) bool {
	return name != "" && len(name) <= 80 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}
