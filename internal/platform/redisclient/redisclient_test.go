package redisclient_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rollcall-dev/rollcall/internal/platform/redisclient"
	testredis "github.com/rollcall-dev/rollcall/internal/testutil/redis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestClient_EachOption_ReachesRedis(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "redis.sock")
	s := testredis.Start(t, "--requirepass", "s:e/c@r?e#t", "--unixsocket", socket)
	host, port := "127.0.0.1", 0
	_, err := fmt.Sscanf(s.Addr(), host+":%d", &port)
	require.NoError(t, err)
	const password = "s:e/c@r?e#t"
	for name, o := range map[string]redisclient.Options{
		"HostAndPort":      {Host: host, Port: port, Password: password},
		"URL":              {URL: "redis://:s%3Ae%2Fc%40r%3Fe%23t@" + s.Addr() + "/3"},
		"URLAndPassword":   {URL: s.URL(), Password: password},
		"Unix":             {URL: "unix://" + socket, Password: password},
		"UnixWithPassword": {URL: "unix://:s%3Ae%2Fc%40r%3Fe%23t@" + socket + "?db=2"},
	} {
		client, err := redisclient.New(o)
		require.NoError(t, err, name)
		require.Eventually(t, func() bool { // on a busy machine a call may take too long
			return client.Set(t.Context(), "k", name, 0).Err() == nil
		}, 2*time.Minute, 10*time.Millisecond, name)
		require.NoError(t, client.Close())
	}
	for db, want := range []string{"", "", "UnixWithPassword", "URL"} {
		if want == "" {
			continue
		}
		require.NoError(t, s.Client().Do(t.Context(), "SWAPDB", 9, db).Err())
		require.NoError(t, s.Client().Do(t.Context(), "SWAPDB", 0, 9).Err())
		require.Equal(t, want, s.Client().Get(t.Context(), "k").Val())
	}
}

// No malformed URL and no way of printing the options may reveal the password.
func TestOptions_PasswordIsNotShown(t *testing.T) {
	t.Parallel()
	for _, o := range []redisclient.Options{
		{URL: "redis://user:hunter2@host:6379/1"},
		{URL: "redis://:hunter2%zz@host:6379"},
		{URL: "redis://:hun/hunter2@host:6379"},
		{URL: "redis://user:12/hunter2@host:6379"},
		{URL: "redis://user:12?hunter2@host:6379"},
		{URL: "redis://user:12#hunter2@host:6379"},
		{URL: "redis://us:er:hunter2@host:hunter2"},
		{URL: "redis+cluster://user:12/hunter2@host:6379"},
		{URL: "unix://:hunter2@/run/redis.sock"},
		{URL: "redis+sentinel://:hunter2@host?master_name=m&password=hunter2"},
		{URL: "redis+sentinel://host?master_name=m&password=x@hunter2"},
		{URL: "http://:hunter2@host"},
		{URL: "hunter2"},
		{Host: "h", Password: "hunter2"},
		{Host: "h", Port: 70000, Password: "hunter2"},
	} {
		var out bytes.Buffer
		client, err := redisclient.New(o)
		if err == nil {
			_ = client.Close()
		}
		slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "redis", o, "err", err)
		fmt.Fprintf(&out, "%v %+v %#v %s", o, o, &o, o)
		if o.URL != "hunter2" { // it does not look like a password
			require.NotContains(t, out.String(), "hunter2", o.URL)
		}
		if err != nil {
			require.NotContains(t, err.Error(), "hunter2")
		}
	}
	require.Equal(t, "redis://host:6379/1", redisclient.Options{URL: "redis://user:hunter2@host:6379/1"}.String())
	require.Equal(t, "redis://localhost:6379", redisclient.Options{}.String())
	require.Equal(t, "unix:///run/redis.sock", redisclient.Options{URL: "unix://:x@/run/redis.sock"}.String())
}

func TestClient_InvalidURL_Fails(t *testing.T) {
	t.Parallel()
	for url, complaint := range map[string]string{
		"redis://host:x":         "not of the form",
		"http://host":            "scheme",
		"redis://host/one":       "database number",
		"redis://host?tint=red":  "tint",
		"redis+cluster://host/3": "no numbered databases",
		"unix://":                "empty unix socket path",
		"redis+sentinel://host":  "master_name",
		"redis+sentinel://host?master_name=m&replica_only=true": "only a master",
		"redis+sentinel://host?master_name=m&tint=red":          "tint",
	} {
		_, err := redisclient.New(redisclient.Options{URL: url})
		require.ErrorContains(t, err, complaint, url)
	}
	_, err := redisclient.New(redisclient.Options{Port: -1})
	require.ErrorContains(t, err, "port")
}

func TestClient_NoResponse_DoesNotRetryAndKeepsDeadline(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	accepted := make(chan net.Conn, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn // it never responds
		}
	}()
	client, err := redisclient.New(redisclient.Options{URL: "redis://" + l.Addr().String() + "?dial_timeout=1m&read_timeout=1m&write_timeout=1m"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // enough to connect on a busy machine
	defer cancel()
	begun := time.Now()
	pinged := make(chan error, 1)
	go func() { pinged <- client.Ping(ctx).Err() }()
	var conn net.Conn
	select {
	case conn = <-accepted:
	case err := <-pinged:
		require.FailNow(t, "no connection", "%v", err)
	}
	require.Error(t, <-pinged)
	require.Less(t, time.Since(begun), 30*time.Second, "less than the client's own timeout")
	require.NoError(t, conn.Close())
	require.NoError(t, l.Close())
	<-done
	require.Empty(t, accepted)
}

func TestClient_SlowHandshake_NamesTheCertificate(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		<-time.After(700 * time.Millisecond) // more than the default
		_ = tls.Server(conn, web.TLS).HandshakeContext(t.Context())
	}()
	client, err := redisclient.New(redisclient.Options{URL: "rediss://" + l.Addr().String(), DialTimeout: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	require.ErrorContains(t, client.Ping(t.Context()).Err(), "certificate signed by unknown authority")
	require.NoError(t, l.Close())
	<-done
}
