package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// targets is the process that is checked: any number of services, each at its own address in 127.0.0.0/8 with one port
// for all. It answers 200 with minimal work, because it shares the processors with the checker. It records when each
// check arrived.
func targets(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("targets", flag.ExitOnError)
	port := flags.Int("port", 0, "port of all services")
	control := flags.String("control", "", "address for HTTP")
	if err := flags.Parse(args); err != nil {
		return err
	}
	// Listens on all addresses of the loopback interface only.
	lc := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var err error
		return errors.Join(conn.Control(func(fd uintptr) {
			err = syscall.SetsockoptString(int(fd), syscall.SOL_SOCKET, syscall.SO_BINDTODEVICE, "lo")
		}), err)
	}}
	listener, err := lc.Listen(ctx, "tcp4", net.JoinHostPort("0.0.0.0", strconv.Itoa(*port)))
	if err != nil {
		return err
	}
	t := &targetServer{}
	go t.serve(listener)

	mux := http.NewServeMux()
	mux.HandleFunc("POST /record", func(w http.ResponseWriter, _ *http.Request) {
		t.record()
		fmt.Fprint(w, "{}")
	})
	mux.HandleFunc("GET /arrivals", func(w http.ResponseWriter, req *http.Request) {
		interval, err := time.ParseDuration(req.FormValue("interval"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(t.arrivals(interval))
	})
	server := &http.Server{Addr: *control, Handler: mux}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

type targetServer struct {
	mu      sync.Mutex
	since   time.Time
	conns   int                        // opened since
	checked map[string][]time.Duration // by local address and request line, since then
}

func (t *targetServer) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		t.mu.Lock()
		t.conns++
		t.mu.Unlock()
		go t.answer(conn)
	}
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

func (t *targetServer) record() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.since, t.conns, t.checked = time.Now(), 0, make(map[string][]time.Duration)
}

func (t *targetServer) arrived(service string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.checked != nil {
		t.checked[service] = append(t.checked[service], time.Since(t.since))
	}
}

// arrivals are the checks received since record.
type arrivals struct {
	Seconds  float64
	Services int // number that were checked
	Checks   int
	Conns    int // opened meanwhile
	// Lateness of each check against its service's own schedule: multiples of the interval after the earliest of its
	// checks. In milliseconds.
	P50, P99, Max float64
	// Missed are checks of a schedule that did not arrive.
	Missed int
}

func (t *targetServer) arrivals(interval time.Duration) arrivals {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := arrivals{Seconds: time.Since(t.since).Seconds(), Services: len(t.checked), Conns: t.conns}
	var late []float64
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
			late = append(late, (offset-base).Seconds()*1000)
		}
	}
	if len(late) > 0 {
		a.P50, a.P99, a.Max = quantile(late, 0.5), quantile(late, 0.99), quantile(late, 1)
	}
	t.checked = nil
	return a
}

// fleet is a running targets process.
type fleet struct {
	*process
	port    int
	control string
	dir     string
}

func (s *suite) startFleet(ctx context.Context) (*fleet, error) {
	dir, err := s.freshDir("targets")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	f := &fleet{port: ports[0], control: net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[1])), dir: dir}
	f.process, err = self("targets", dir, "targets", "-port", strconv.Itoa(f.port), "-control", f.control)
	if err != nil {
		return nil, err
	}
	err = until(ctx, 10*time.Second, func(ctx context.Context) error {
		if err := f.running(); err != nil {
			return err
		}
		_, err := httpGet(ctx, f.url(0)+"/health")
		return err
	})
	if err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *fleet) close() {
	f.kill()
	os.RemoveAll(f.dir)
}

// url returns the URL of the n-th service. Up to maxHosts each has its own address. From there on they also have a
// path, because both ends have a limit of open connections.
func (f *fleet) url(n int) string {
	path := ""
	if n >= maxHosts {
		path = "/" + strconv.Itoa(n/maxHosts)
	}
	n %= maxHosts
	return fmt.Sprintf("http://127.%d.%d.%d:%d%s", 1+n/62500, n/250%250, 1+n%250, f.port, path)
}

// maxHosts is how many connections to different hosts a checker with 20,000 open files keeps.
const maxHosts = 10_000

func (f *fleet) record(ctx context.Context) error {
	_, err := postJSON[struct{}](ctx, "http://"+f.control+"/record", nil)
	return err
}

func (f *fleet) arrivals(ctx context.Context, interval time.Duration) (a arrivals, err error) {
	body, err := httpGet(ctx, "http://"+f.control+"/arrivals?interval="+interval.String())
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(body, &a)
}

// httpClient is a bare net/http client that requests the checker's addresses, in turn, as fast as it can, and prints a
// result.
func httpClient(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("http-client", flag.ExitOnError)
	port := flags.Int("port", 0, "the services' port")
	services := flags.Int("services", 0, "how many there are")
	workers := flags.Int("workers", 1, "requests at the same time")
	fresh := flags.Bool("fresh", false, "a new connection for each request")
	warm := flags.Duration("warm", time.Second, "not counted")
	window := flags.Duration("window", time.Second, "counted")
	if err := flags.Parse(args); err != nil {
		return err
	}
	f := &fleet{port: *port}
	urls := make([]string, *services)
	for i := range urls {
		urls[i] = f.url(i) + "/health"
	}
	client := &http.Client{
		Timeout:   500 * time.Millisecond,
		Transport: &http.Transport{MaxIdleConnsPerHost: 1, DisableKeepAlives: *fresh, DisableCompression: true},
	}
	// Each worker has its own services, so that no two use one kept connection.
	turn := make([]int, *workers)
	res, err := load{Callers: *workers, Warm: *warm, Window: *window}.run(ctx, func(ctx context.Context, worker int) (int, error) {
		url := urls[(worker+turn[worker]**workers)%len(urls)]
		turn[worker]++
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return 0, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, ctx.Err() // timed out, like a check may: not counted
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return 0, err
		}
		if resp.StatusCode != http.StatusOK {
			return 0, errors.New(resp.Status)
		}
		return 1, nil
	})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(res)
}

// bareClient runs httpClient.
func (s *suite) bareClient(ctx context.Context, f *fleet, services, workers int, fresh bool) (res result, err error) {
	return selfJSON[result](ctx, f.dir, fmt.Sprintf("http-client-%d", workers), nil, "http-client", "-port", strconv.Itoa(f.port),
		"-services", strconv.Itoa(services), "-workers", strconv.Itoa(workers), "-fresh="+strconv.FormatBool(fresh),
		"-warm", (2 * s.warm).String(), "-window", s.window.String())
}
