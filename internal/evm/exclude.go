package evm

import "errors"

// Exclusion is the reason why an endpoint must not be used. The zero value ends the exclusion.
type Exclusion struct {
	Reason string
	// Undecided marks an endpoint that may turn out to be right. [Client.PendingEverywhere] then fails instead of
	// skipping it.
	Undecided bool
}

// Exclude stops reads from and sends to an endpoint, named as in Status. Only [Client.Anchors] still asks it. Views of
// it fail. The caller decides by comparing several endpoints.
func (c *Client) Exclude(endpoint string, e Exclusion) {
	ep, err := c.named(endpoint)
	if err != nil {
		return // it belongs to another client
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.excluded = e
	if e != (Exclusion{}) {
		ep.down()
	}
	ep.showExcluded()
}

// showExcluded sets the metric of endpoints that are not used because of their chain. ep.mu is held.
func (ep *endpoint) showExcluded() {
	value := 0.0
	if ep.chainID != 0 && ep.chainID != ep.cfg.ChainID || ep.excluded != (Exclusion{}) && !ep.excluded.Undecided {
		value = 1
	}
	ep.cfg.Metrics.excluded.WithLabelValues(ep.name).Set(value)
}

// exclusion returns a *TransportError if the endpoint must not be used, and nil if it may be.
func (ep *endpoint) exclusion() error {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.excluded == (Exclusion{}) {
		return nil
	}
	return &TransportError{Endpoint: ep.name, Err: errors.New("excluded: " + ep.excluded.Reason)}
}

// exclusion returns why the endpoint of a host must not be used; nil if it may be, or if there is no such endpoint.
func (c *Client) exclusion(host string) error {
	ep, err := c.named(host)
	if err != nil {
		return nil // a subscription may have a host of its own
	}
	return ep.exclusion()
}

// leftOut reports whether the endpoint is definitely excluded, so that its data does not count.
func (ep *endpoint) leftOut() bool {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.excluded != (Exclusion{}) && !ep.excluded.Undecided
}
