package hostlist

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
)

// Private are the loopback addresses and the private networks. Link-local addresses are not among them: clouds serve credentials there.
var Private = []string{"127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"}

// ErrRefused is the error of [List.Dial] for a host that the List does not have.
var ErrRefused = errors.New("no pattern allows the name, and no network its address")

// List has the hosts to which connections may be opened. The zero value has none.
type List struct {
	patterns []string
	networks []netip.Prefix
}

// Parse returns the List of entries. Each one is a network such as 10.0.0.0/8, an address, or a pattern as of [Matches].
func Parse(entries []string) (l List, err error) {
	for _, entry := range entries {
		address, addressErr := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(entry, "["), "]"))
		network, networkErr := netip.ParsePrefix(entry)
		switch {
		case addressErr == nil:
			l.networks = append(l.networks, netip.PrefixFrom(address.Unmap(), address.Unmap().BitLen()))
		case networkErr == nil && network == network.Masked():
			l.networks = append(l.networks, network)
		case networkErr == nil:
			return List{}, fmt.Errorf("network %q has bits of a host: its first address is %v", entry, network.Masked())
		case strings.Contains(entry, "/"):
			return List{}, fmt.Errorf("%q is not a network such as 10.0.0.0/8", entry)
		default:
			if err := CheckPattern(entry); err != nil {
				return List{}, err
			}
			l.patterns = append(l.patterns, entry)
		}
	}
	return l, nil
}

// Dial opens a connection to a host:port. A name that a pattern allows may have any address, because its resolver is trusted for it. Any
// other host is judged by the address that is about to be connected to; no network allows it if the error is [ErrRefused].
func (l List) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	if !Matches(l.patterns, &url.URL{Host: address}) {
		d.Control = func(_, address string, _ syscall.RawConn) error {
			if !l.contains(address) {
				return ErrRefused
			}
			return nil
		}
	}
	return d.DialContext(ctx, network, address)
}

// contains reports whether a network has the address of an address:port.
func (l List) contains(address string) bool {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return false
	}
	for _, network := range l.networks {
		if network.Contains(at.Addr().Unmap()) {
			return true
		}
	}
	return false
}
