package evm

import (
	"errors"
	"net/url"
	"strings"
)

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

// exclusion returns why the endpoint of a subscription's host must not be used; nil if it may be, or if the subscription has a host of its
// own. Its port may differ from that of the endpoint, unless several endpoints are of the host.
func (c *Client) exclusion(host string) error {
	if ep, err := c.named(host); err == nil {
		return ep.exclusion()
	}
	hostname := func(name string) string { return strings.ToLower((&url.URL{Host: name}).Hostname()) }
	var of []*endpoint
	for _, ep := range c.endpoints {
		if hostname(ep.name) == hostname(host) {
			of = append(of, ep)
		}
	}
	if len(of) != 1 {
		return nil
	}
	return of[0].exclusion()
}

// leftOut reports whether the endpoint is definitely excluded, so that its data does not count.
func (ep *endpoint) leftOut() bool {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.excluded != (Exclusion{}) && !ep.excluded.Undecided
}
