package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

// Config configures a proxy.
type Config struct {
	// HTTP and WS are the node's endpoints, http://… and ws://…; without WS there is no websocket.
	HTTP, WS string
	// Seed makes the random choices repeatable if calls come in the same order.
	Seed uint64
}

// Proxy is an endpoint. Its methods are safe for concurrent use.
type Proxy struct {
	listener net.Listener
	server   *http.Server
	client   *http.Client
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	work     sync.WaitGroup

	node  atomic.Pointer[node]
	rules atomic.Pointer[[]*armed]
	fixed atomic.Bool // some of them are permanent
	on    atomic.Bool
	lag   atomic.Uint64
	down  atomic.Bool

	mu    sync.Mutex // guards the following fields
	dice  *rand.Rand
	conns map[*websocket.Conn]struct{}
	names []*armed // all rules since Open
	over  bool     // accepts no more requests
}

// node is the URLs of a node.
type node struct{ http, ws string }

// Open starts the listener at a loopback port that the system picks. Rules are switched on, and the list is empty.
func Open(config Config) (*Proxy, error) {
	if config.HTTP == "" {
		return nil, errors.New("proxy: no node to stand before")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p := &Proxy{
		listener: l, conns: map[*websocket.Conn]struct{}{},
		dice: rand.New(rand.NewPCG(config.Seed, config.Seed)),
		// Nodes on this machine spend more time on compressing answers than on all else.
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute, DisableCompression: true}},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.node.Store(&node{config.HTTP, config.WS})
	p.rules.Store(&[]*armed{})
	p.on.Store(true)
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 30 * time.Second}
	p.work.Go(func() { _ = p.server.Serve(l) }) // it ends with Close
	return p, nil
}

// URL returns http://host:port.
func (p *Proxy) URL() string { return "http://" + p.listener.Addr().String() }

// WSURL returns ws://host:port.
func (p *Proxy) WSURL() string { return "ws://" + p.listener.Addr().String() }

// SetNode moves the endpoint to another node, with URLs as in Config. All websockets are closed; running calls end at
// the former node.
func (p *Proxy) SetNode(http, ws string) {
	p.node.Store(&node{http, ws})
	p.CutWebsockets()
}

// SetRules replaces the rules. Names should be unique: rules of one name are counted together.
func (p *Proxy) SetRules(rules ...Rule) {
	set := make([]*armed, len(rules))
	for i, r := range rules {
		set[i] = &armed{Rule: r}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names = append(p.names, set...)
	p.fixed.Store(slices.ContainsFunc(rules, func(r Rule) bool { return r.Permanent }))
	p.rules.Store(&set)
}

// Switch turns the rules and the lag on or off, except for permanent rules.
func (p *Proxy) Switch(on bool) { p.on.Store(on) }

// SetLag shows the chain as of this many blocks ago; 0 shows it unchanged. The pool, and so "pending", does not lag.
func (p *Proxy) SetLag(blocks uint64) { p.lag.Store(blocks) }

// SetDown closes all websockets, and resets every request until it is up again.
func (p *Proxy) SetDown(down bool) {
	p.down.Store(down)
	if down {
		p.CutWebsockets()
	}
}

// CutWebsockets closes the open websockets.
func (p *Proxy) CutWebsockets() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// Injected returns how often each rule struck since Open, by name.
func (p *Proxy) Injected() map[string]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts := map[string]uint64{}
	for _, a := range p.names {
		counts[a.Name] += a.struck.Load()
	}
	return counts
}

// Close stops the endpoint and all running requests. It may be called again.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.cancel()
	err := p.server.Close()
	p.CutWebsockets()
	p.work.Wait()
	p.client.CloseIdleConnections()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close proxy: %w", err)
	}
	return nil
}

// begin registers a request, which Close waits for; false after Close.
func (p *Proxy) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	p.work.Add(1)
	return true
}

// idle reports whether bytes can be forwarded unchanged.
func (p *Proxy) idle() bool {
	if !p.on.Load() {
		return !p.fixed.Load()
	}
	return len(*p.rules.Load()) == 0 && p.lag.Load() == 0
}

func (p *Proxy) lagging() uint64 {
	if !p.on.Load() {
		return 0
	}
	return p.lag.Load()
}

// selectFault returns the fault and the delay of a call in a request of some.
func (p *Proxy) selectFault(m *message, batch int) (v verdict) {
	on := p.on.Load()
	for _, a := range *p.rules.Load() {
		if !on && !a.Permanent {
			continue
		}
		if v.fault.Kind != 0 && a.Fault.Kind != Delay {
			continue
		}
		if !a.strikes(Call{Method: m.Method, Params: m.Params, Batch: batch}, p.chance) {
			continue
		}
		if a.Fault.Kind == Delay {
			v.delay += a.Fault.Delay
		} else {
			v.fault = a.Fault
		}
	}
	return v
}

func (p *Proxy) chance() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dice.Float64()
}

// wait waits; false if the proxy was closed meanwhile.
func (p *Proxy) wait(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.ctx.Done():
		return false
	}
}
