package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// fleet is the process that health checks are sent to: any number of services, each at its own address in 127.0.0.0/8 with
// one port for all. Webhooks are sent to it, too.
type fleet struct {
	port     string
	control  string // URL
	webhooks string // URL
}

func (t *trial) startFleet() *fleet {
	program, err := os.Executable()
	t.check(err)
	addrs := t.addresses(2)
	_, port, _ := net.SplitHostPort(addrs[0])
	t.start(t.TempDir(), nil, "listening", program, "targets", port, addrs[1])
	return &fleet{port: port, control: "http://" + addrs[1], webhooks: "http://" + addrs[1] + "/webhooks"}
}

// maxHosts is how many connections to different hosts a checker with 20,000 open files keeps.
const maxHosts = 10_000

// url returns the URL of the n-th service. Up to maxHosts each has its own address. From there on they also have a
// path, because both ends have a limit of open connections.
func (f *fleet) url(n int) string {
	path := ""
	if n >= maxHosts {
		path = "/" + strconv.Itoa(n/maxHosts)
	}
	n %= maxHosts
	return fmt.Sprintf("http://127.%d.%d.%d:%s%s", 1+n/62500, n/250%250, 1+n%250, f.port, path)
}

// arrivals are the checks that arrived in a time.
type arrivals struct {
	Services, Checks int
	PerSecond        float64
	// Missed are checks of a service's schedule that did not arrive.
	Missed int
	// Late is the 99th percentile of the lateness of each check against its service's own schedule: multiples of the
	// interval after the earliest of its checks.
	Late time.Duration
}

// arrivals returns the checks that arrive in a time.
func (f *fleet) arrivals(t *trial, interval time.Duration, do func()) (a arrivals) {
	t.get(f.control) // begins to record
	do()
	t.check(json.Unmarshal(t.get(f.control+"?interval="+interval.String()), &a))
	return a
}

// targets serves a fleet. It answers checks with minimal work, because it shares the processors with the checker. It
// records when each check arrived, and counts webhooks.
func targets(ctx context.Context, port, control string) error {
	// Listens on all addresses of the loopback interface only.
	lc := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var err error
		return errors.Join(conn.Control(func(fd uintptr) {
			err = syscall.SetsockoptString(int(fd), syscall.SOL_SOCKET, syscall.SO_BINDTODEVICE, "lo")
		}), err)
	}}
	listener, err := lc.Listen(ctx, "tcp4", net.JoinHostPort("0.0.0.0", port))
	if err != nil {
		return err
	}
	t := &targetServer{}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go t.answer(conn)
		}
	}()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, req *http.Request) {
		interval, _ := time.ParseDuration(req.FormValue("interval"))
		_ = json.NewEncoder(w).Encode(t.arrivals(max(interval, 1)))
	})
	var webhooks atomic.Int64
	mux.HandleFunc("POST /webhooks", func(_ http.ResponseWriter, req *http.Request) {
		if _, err := io.Copy(io.Discard, req.Body); err == nil {
			webhooks.Add(1)
		}
	})
	mux.HandleFunc("GET /webhooks", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, webhooks.Load()) })
	controls, err := net.Listen("tcp", control)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "listening")
	server := &http.Server{Handler: mux}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	return server.Serve(controls)
}

func httpGet(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(body))
	}
	return body, err
}

type targetServer struct {
	mu      sync.Mutex
	since   time.Time
	checked map[string][]time.Duration // since then, by local address and request line
}

var (
	healthy    = []byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	endOfHead  = []byte("\r\n\r\n")
	endOfFirst = []byte("\r\n")
)

func (t *targetServer) answer(conn net.Conn) {
	defer conn.Close()
	local := conn.LocalAddr().String()
	buf, n := make([]byte, 1024), 0
	for n < len(buf) {
		read, err := conn.Read(buf[n:])
		if err != nil {
			return
		}
		if n += read; !bytes.HasSuffix(buf[:n], endOfHead) {
			continue
		}
		line, _, _ := bytes.Cut(buf[:n], endOfFirst)
		t.arrived(local + string(line))
		if _, err := conn.Write(healthy); err != nil {
			return
		}
		n = 0
	}
}

func (t *targetServer) arrived(service string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.checked != nil {
		t.checked[service] = append(t.checked[service], time.Since(t.since))
	}
}

// arrivals returns the checks since the last call, and records from now on.
func (t *targetServer) arrivals(interval time.Duration) arrivals {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, late := arrivals{Services: len(t.checked)}, newLatencies()
	for _, at := range t.checked {
		a.Checks += len(at)
		ticks := make([]int, len(at))
		offsets := make([]time.Duration, len(at))
		base := time.Duration(1<<63 - 1)
		for i := range at {
			ticks[i] = int((at[i] - at[0] + interval/2) / interval)
			offsets[i] = at[i] - time.Duration(ticks[i])*interval
			base = min(base, offsets[i])
		}
		a.Missed += max(0, ticks[len(ticks)-1]+1-len(at))
		for _, offset := range offsets {
			late.add(offset - base)
		}
	}
	a.Late = late.quantile(0.99)
	if !t.since.IsZero() {
		a.PerSecond = float64(a.Checks) / time.Since(t.since).Seconds()
	}
	t.since, t.checked = time.Now(), make(map[string][]time.Duration)
	return a
}
