package webhook

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAddress_PublicPrivateOrForbidden(t *testing.T) {
	t.Parallel()
	const public, private, never = "public", "private", "never"
	for address, want := range map[string]string{
		"1.1.1.1": public, "172.15.255.255": public, "172.32.0.0": public, "100.63.255.255": public, "100.128.0.0": public,
		"11.0.0.0": public, "192.167.255.255": public, "192.169.0.0": public, "126.255.255.255": public, "128.0.0.0": public,
		"223.255.255.255": public, "169.253.255.255": public, "198.17.255.255": public, "198.20.0.0": public,
		"2606:4700:4700::1111": public, "64:ff9b::1.1.1.1": public, "2002:101:101::1": public, "::ffff:1.1.1.1": public,
		"127.0.0.1": private, "127.255.255.254": private, "10.0.0.1": private, "172.16.0.1": private, "172.31.255.255": private,
		"192.168.1.1": private, "100.64.0.1": private, "100.127.255.255": private, "198.18.0.1": private, "::1": private,
		"fc00::1": private, "fd12:3456::1": private, "fec0::1": private, "::ffff:127.0.0.1": private, "::ffff:10.0.0.1": private,
		"64:ff9b::10.0.0.1": private, "64:ff9b:1::1": private, "2002:a00:1::1": private, "2002:7f00:1::": private,
		"169.254.169.254": never, "169.254.1.1": never, "fe80::1": never, "fe80::1%eth0": never, "::ffff:169.254.169.254": never,
		"64:ff9b::169.254.169.254": never, "2002:a9fe:a9fe::1": never, "100.100.100.200": never, "168.63.129.16": never,
		"fd20:ce::254": never, "fd00:42::42": never, "::ffff:0:169.254.169.254": never, "::ffff:0:10.0.0.1": private,
		"fd00:ec2::254": never, "192.0.0.192": never, "0.0.0.0": never, "0.1.2.3": never, "::": never, "::ffff:0.0.0.0": never,
		"224.0.0.1": never, "239.255.255.255": never, "ff02::1": never, "255.255.255.255": never, "240.0.0.1": never,
		"192.0.2.1": never, "198.51.100.1": never, "203.0.113.1": never, "2001:db8::1": never, "2001::1": never,
		"::127.0.0.1": never, "100::1": never,
	} {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			addr := netip.MustParseAddr(address)
			strict, lenient := checkAddress(addr, false), checkAddress(addr, true)
			if want == public {
				require.NoError(t, strict)
			} else {
				require.ErrorAs(t, strict, new(*AddressError))
			}
			if want == never {
				require.ErrorAs(t, lenient, new(*AddressError))
			} else {
				require.NoError(t, lenient)
			}
		})
	}
}
