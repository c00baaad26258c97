package evm

import "errors"

// Exclusion is why an endpoint must not be used. The zero value ends it.
type Exclusion struct {
	Reason string
	// Undecided: the endpoint may turn out to be right. [Client.PendingEverywhere] fails rather than leave it out.
	Undecided bool
}

// Exclude keeps an endpoint, named as in Status, from being read from and sent to. Only [Client.Anchors] asks it meanwhile. Views of it
// fail. The caller judges by several endpoints.
func (c *Client) Exclude(endpoint string, e Exclusion) {
	ep, err := c.named(endpoint)
	if err != nil {
		return // another client's
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.excluded = e
	value := 0.0
	if e != (Exclusion{}) {
		ep.down()
		if !e.Undecided {
			value = 1
		}
	}
	ep.cfg.Metrics.excluded.WithLabelValues(ep.name).Set(value)
}

// exclusion returns why the endpoint must not be used, as an endpoint's failure to answer; nil: it may be.
func (ep *endpoint) exclusion() error {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.excluded == (Exclusion{}) {
		return nil
	}
	return &TransportError{Endpoint: ep.name, Err: errors.New("excluded: " + ep.excluded.Reason)}
}

// exclusion returns why the endpoint of a host must not be used; nil where it may be, or there is none.
func (c *Client) exclusion(host string) error {
	ep, err := c.named(host)
	if err != nil {
		return nil //nolint:nilerr // a subscription may have a host of its own
	}
	return ep.exclusion()
}

// leftOut reports whether the endpoint is excluded for good reason, so that what it has does not count.
func (ep *endpoint) leftOut() bool {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.excluded != (Exclusion{}) && !ep.excluded.Undecided
}
