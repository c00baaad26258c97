package webhook

import (
	"fmt"
	"net/netip"
	"slices"
)

// AddressError means that webhooks may not be sent to an address.
type AddressError struct {
	Addr  netip.Addr
	Class string // such as "loopback"
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("%v is a %s address, which webhooks are not sent to", e.Addr, e.Class)
}

// class is a kind of network.
type class struct {
	name    string
	private bool // may be allowed
	in      []netip.Prefix
}

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, p := range list {
		out[i] = netip.MustParsePrefix(p)
	}
	return out
}

// classes are the address ranges outside the public internet. The first class that contains an address applies.
var classes = []class{
	// Addresses of metadata services, which give credentials to any caller on the machine: AWS, Azure, Alibaba, Oracle,
	// Google, Scaleway.
	{name: "metadata", in: prefixes("169.254.169.254/32", "169.254.170.2/32", "fd00:ec2::/32", "168.63.129.16/32",
		"100.100.100.200/32", "192.0.0.192/32", "fd20:ce::254/128", "fd00:42::42/128")},
	{name: "link-local", in: prefixes("169.254.0.0/16", "fe80::/10")},
	{name: "multicast", in: prefixes("224.0.0.0/4", "ff00::/8")},
	{name: "loopback", private: true, in: prefixes("127.0.0.0/8", "::1/128")},
	{name: "private", private: true, in: prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10",
		"64:ff9b:1::/48")},
	{name: "carrier-grade NAT", private: true, in: prefixes("100.64.0.0/10")},
	{name: "benchmarking", private: true, in: prefixes("198.18.0.0/15", "2001:2::/48")},
	{name: "reserved", in: prefixes("0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24",
		"192.88.99.0/24", "240.0.0.0/4", "::/96", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16")},
}

// checkAddress returns an *AddressError if no webhook may be sent to addr.
func checkAddress(addr netip.Addr, allowPrivate bool) error {
	plain := addr.Unmap().WithZone("")
	for _, c := range classes {
		if allowPrivate && c.private {
			if slices.ContainsFunc(c.in, func(p netip.Prefix) bool { return p.Contains(plain) }) {
				return nil // also ::1, which is in ::/96
			}
			continue
		}
		if slices.ContainsFunc(c.in, func(p netip.Prefix) bool { return p.Contains(plain) }) {
			return &AddressError{Addr: addr, Class: c.name}
		}
	}
	// An address that a gateway translates to IPv4 is checked as that IPv4 address.
	if inner, ok := embedded(plain); ok {
		return checkAddress(inner, allowPrivate)
	}
	return nil
}

var (
	nat64   = netip.MustParsePrefix("64:ff9b::/96")
	siit    = netip.MustParsePrefix("::ffff:0:0:0/96") // RFC 2765
	sixToIV = netip.MustParsePrefix("2002::/16")
)

// embedded returns the IPv4 address that an IPv6 address contains.
func embedded(addr netip.Addr) (netip.Addr, bool) {
	b := addr.As16()
	switch {
	case nat64.Contains(addr), siit.Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:])), true
	case sixToIV.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:])), true
	default:
		return netip.Addr{}, false
	}
}
