package webhook

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// names serves DNS on the loopback interface: each address query gets the result of answer.
func names(t testing.TB, answer func(name string) netip.Addr) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for buf := make([]byte, 1500); ; {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if err := m.Unpack(buf[:n]); err != nil {
				t.Errorf("DNS question: %v", err)
				return
			}
			m.Response, m.Additionals = true, nil
			for _, q := range m.Questions {
				if q.Type == dnsmessage.TypeA {
					m.Answers = append(m.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
						Body:   &dnsmessage.AResource{A: answer(q.Name.String()).As4()},
					})
				}
			}
			packed, err := m.Pack()
			if err != nil {
				t.Errorf("DNS answer: %v", err)
				return
			}
			_, _ = conn.WriteTo(packed, from)
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp4", conn.LocalAddr().String())
	}}
}

// one makes one attempt with a sender to a URL.
func one(t testing.TB, raw string, change func(*Config)) *failure {
	t.Helper()
	cfg := settings(Target{Name: "here", URL: raw, SigningKeys: []string{secret}})
	change(&cfg)
	cfg, targets, err := cfg.complete()
	require.NoError(t, err)
	s := newSender(targets[0], cfg)
	t.Cleanup(s.close)
	return s.send(t.Context(), "id", "event", struct{}{})
}

func TestDial_NameResolvesToPrivateAddress_IsRejected(t *testing.T) {
	t.Parallel()
	var hits atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	server.Config.ConnState = func(net.Conn, http.ConnState) { hits.Add(1) }
	server.Start()
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	for name, private := range map[string]bool{"loopback": false, "metadata": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := netip.MustParseAddr("127.0.0.1")
			if name == "metadata" {
				address = netip.MustParseAddr("169.254.169.254")
			}
			fail := one(t, "https://receiver.example:"+u.Port()+"/token-of-the-path", func(c *Config) {
				c.AllowPrivate = private
				c.tuning.resolver = names(t, func(string) netip.Addr { return address })
			})
			require.Equal(t, address.String()+" is a "+name+" address, which webhooks are not sent to", fail.reason)
			require.False(t, fail.permanent) // the name may resolve to another address later
		})
	}
	t.Run("localhost", func(t *testing.T) {
		t.Parallel()
		fail := one(t, "https://localhost:"+u.Port(), func(c *Config) { c.AllowPrivate = false })
		require.Contains(t, fail.reason, "is a loopback address")
	})
	t.Cleanup(func() { require.Zero(t, hits.Load()) })
}

func TestDial_NameChanges_IsCheckedEachTime(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(w http.ResponseWriter, _ request) { w.Header().Set("Connection", "close") })
	u, err := url.Parse(r.server.URL)
	require.NoError(t, err)
	var address atomic.Value
	address.Store(netip.MustParseAddr("127.0.0.1"))
	cfg := settings(Target{Name: "here", URL: "http://receiver.example:" + u.Port(), SigningKeys: []string{secret}})
	cfg.tuning.resolver = names(t, func(string) netip.Addr { return address.Load().(netip.Addr) })
	cfg, targets, err := cfg.complete()
	require.NoError(t, err)
	s := newSender(targets[0], cfg)
	t.Cleanup(s.close)
	require.Nil(t, s.send(t.Context(), "id", "event", struct{}{}))
	address.Store(netip.MustParseAddr("169.254.169.254"))
	require.Contains(t, s.send(t.Context(), "id", "event", struct{}{}).reason, "metadata")
}

func TestDial_CertificatesAreVerified(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = (&journal{}).std()
	server.StartTLS()
	t.Cleanup(server.Close)
	known := x509.NewCertPool()
	known.AddCert(server.Certificate())

	require.Nil(t, one(t, server.URL, func(c *Config) { c.CAs = known }))
	require.Contains(t, one(t, server.URL, func(c *Config) { c.CAs = x509.NewCertPool() }).reason, "certificate")
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	fail := one(t, "https://other.test:"+u.Port(), func(c *Config) {
		c.CAs = known
		c.tuning.resolver = names(t, func(string) netip.Addr { return netip.MustParseAddr("127.0.0.1") })
	})
	require.Contains(t, fail.reason, "certificate is valid for")
}

func TestDeliverer_EndlessResponse_IsCutOff(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	r := newReceiver(t, func(w http.ResponseWriter, _ request) {
		w.WriteHeader(200)
		chunk := []byte(strings.Repeat("x", 1<<16))
		for {
			n, err := w.Write(chunk)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	require.Nil(t, one(t, r.server.URL, func(*Config) {}))
	require.Less(t, sent.Load(), int64(64<<20)) // the capacity of sockets, not what it would have sent in the timeout
}

func TestRetryAfter_TooLong_IsLimited(t *testing.T) {
	t.Parallel()
	db := database(t)
	var n atomic.Int32
	r := newReceiver(t, func(w http.ResponseWriter, _ request) {
		if n.Add(1) == 1 {
			w.Header().Set("Retry-After", "86400")
			w.WriteHeader(429)
		}
	})
	change(t, db, newTx(t), 1, "here")
	cfg := settings(r.target("here"))
	cfg.MaxBackoff = time.Second
	begin := time.Now()
	run(t, db, cfg)
	r.waitTaken(1)
	require.GreaterOrEqual(t, time.Since(begin), time.Second)
}
