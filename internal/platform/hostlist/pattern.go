package hostlist

import (
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"

	"golang.org/x/net/idna"
)

// Matches reports whether a URL's host, or its host:port, is one of the patterns or matches one. In a pattern * and ? match within one
// label of a name.
func Matches(patterns []string, u *url.URL) bool {
	host := dialedName(u.Hostname())
	hostPort := host
	if port := u.Port(); port != "" {
		hostPort += ":" + port
	}
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if pattern == u.Host || pattern == u.Hostname() {
			return true
		}
		if host == "" || isNumeric(host) || isAddressPattern(pattern) && !isAddress(host) {
			return false
		}
		return matchHost(pattern, host) || matchHost(pattern, hostPort)
	})
}

// dialedName returns the name that a connection to the host resolves, in lower case. It returns an empty string for a name
// with characters that IDNA does not convert, because a resolver may convert them. One such character may become a dot
// and another one part of a label, so patterns are never matched against the original name.
func dialedName(host string) string {
	if ascii, err := idna.Lookup.ToASCII(host); err == nil {
		host = ascii
	}
	if strings.ContainsFunc(host, func(r rune) bool { return r > '~' }) {
		return ""
	}
	return strings.ToLower(host)
}

// matchHost matches label by label, because path.Match lets a * match dots: oz-relayer-* would match
// oz-relayer-1.evil.example.
func matchHost(pattern, host string) bool {
	return slices.EqualFunc(hostLabels(strings.ToLower(pattern)), hostLabels(host), func(patterns, labels []string) bool {
		return slices.EqualFunc(patterns, labels, func(pattern, label string) bool {
			ok, _ := path.Match(pattern, label) // validated
			return ok
		})
	})
}

// hostLabels returns the labels of the parts that colons separate.
func hostLabels(s string) [][]string {
	var all [][]string
	for part := range strings.SplitSeq(s, ":") {
		all = append(all, strings.Split(part, "."))
	}
	return all
}

// isAddressPattern reports whether a pattern such as 10.0.0.* is for IPv4 addresses. It must not match the name
// 10.0.0.example.
func isAddressPattern(pattern string) bool {
	host, _, _ := strings.Cut(pattern, ":")
	return strings.Contains(host, ".") && strings.ContainsAny(host, "0123456789") && strings.Trim(host, "0123456789.*?") == ""
}

// isNumeric reports whether a host is no address and ends in a number. Some resolvers read such a name as an address: 134744072 and
// 8.8.2056 are 8.8.8.8.
func isNumeric(host string) bool {
	if isAddress(host) {
		return false
	}
	host = strings.TrimSuffix(host, ".")
	last := host[strings.LastIndex(host, ".")+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// CheckPattern returns an error for a text that is neither a pattern nor an IPv6 address in brackets.
func CheckPattern(pattern string) error {
	fault := fmt.Errorf("host %q is not a pattern such as oz-relayer-*", pattern)
	if pattern == "" {
		return fault
	}
	if strings.HasPrefix(pattern, "[") {
		if u, err := url.Parse("http://" + pattern); err == nil && u.Host == pattern && isAddress(u.Hostname()) {
			return nil
		}
	}
	for _, labels := range hostLabels(pattern) {
		for _, label := range labels {
			if _, err := path.Match(label, ""); err != nil {
				return fault
			}
		}
	}
	return nil
}
