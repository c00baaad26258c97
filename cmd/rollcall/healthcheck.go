package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/rollcall-dev/rollcall/internal/cli"
)

// healthcheckCmd is for container images, which hold nothing but this binary.
type healthcheckCmd struct {
	URL     string        `arg:"" name:"url" help:"What to ask, such as http://127.0.0.1:3001/healthz, or tcp://redis:6379 to connect only."`
	Timeout time.Duration `default:"2s" min:"10ms" max:"1m" help:"How long to wait for the answer."`
}

func (c *healthcheckCmd) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if address, ok := strings.CutPrefix(c.URL, "tcp://"); ok {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return cli.UsageError{Err: err}
	}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", c.URL, res.Status)
	}
	return nil
}
