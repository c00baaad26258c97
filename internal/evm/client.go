package evm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
)

// Client calls the nodes of one chain. Its methods are safe for concurrent use, before and while Run runs.
type Client struct {
	cfg       Config
	log       *slog.Logger
	endpoints []*endpoint
	heads     heads
	fees      feeCache
	transfers transferGasCache

	// background tracks sends that continue after the caller has its answer; stop ends them.
	background sync.WaitGroup
	life       context.Context
	stop       context.CancelFunc
}

// Open checks the configuration and returns a Client. It dials nothing yet. The caller must close the Client.
func Open(cfg Config) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("chain: %w", err)
	}
	c := &Client{cfg: cfg, log: cfg.Logger.With("component", "chain")}
	c.heads.changed = make(chan struct{})
	c.life, c.stop = context.WithCancel(context.Background())
	names := map[string]int{}
	for i, raw := range cfg.Endpoints {
		u, err := parseEndpoint(raw, "http", "https", "ws", "wss")
		if err != nil {
			return nil, fmt.Errorf("chain: endpoint %d: %w", i+1, err)
		}
		name := u.Host
		if names[u.Host]++; names[u.Host] > 1 {
			name = fmt.Sprintf("%s#%d", u.Host, names[u.Host])
		}
		c.endpoints = append(c.endpoints, newEndpoint(&c.cfg, i, name, u))
	}
	return c, nil
}

// Close cancels background sends and closes all connections. It may be called again.
func (c *Client) Close() {
	c.stop()
	c.background.Wait()
	for _, ep := range c.endpoints {
		ep.conn.close()
	}
}

// ChainID returns the configured chain id.
func (c *Client) ChainID() uint64 { return c.cfg.ChainID }

// Run watches the endpoints and their heads until ctx ends; then it returns nil. Without Run, calls work, but no heads
// are received. Faults of an endpoint are then found only by calls that fail over.
func (c *Client) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, ep := range c.endpoints {
		wg.Go(func() { c.watch(ctx, ep) })
	}
	if c.cfg.Subscribe != "" {
		wg.Go(func() { c.follow(ctx) })
	}
	wg.Wait()
	return nil
}

// candidates returns the usable endpoints for the methods, the best first.
func (c *Client) candidates(methods ...string) []*endpoint {
	now := time.Now()
	type ranked struct {
		ep *endpoint
		endpointHealth
	}
	all := make([]ranked, 0, len(c.endpoints))
	for _, ep := range c.endpoints {
		if s := ep.healthOf(now, methods...); s < standingLimited {
			all = append(all, ranked{ep, s})
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return int(a.endpointHealth) - int(b.endpointHealth) })
	eps := make([]*endpoint, len(all))
	for i, r := range all {
		eps[i] = r.ep
	}
	return eps
}

// Endpoints returns the names of the usable endpoints, the best for the methods first. It leaves out those that are rate-limited,
// excluded, or on another chain, and sends no requests. It is for callers that compare endpoints.
func (c *Client) Endpoints(methods ...string) []string {
	eps := c.candidates(methods...)
	names := make([]string, len(eps))
	for i, ep := range eps {
		names[i] = ep.name
	}
	return names
}

// Distrust is [View.Distrust] for an endpoint, named as in Status.
func (c *Client) Distrust(endpoint, method string, why error) error {
	ep, err := c.named(endpoint)
	if err != nil {
		return err
	}
	return ep.distrust(method, why)
}

// none returns an error that explains why there are no candidates for the methods.
func (c *Client) none(methods ...string) error {
	var reasons []error
	for _, ep := range c.endpoints {
		ep.mu.Lock()
		switch {
		case ep.chainID != 0 && ep.chainID != c.cfg.ChainID:
			reasons = append(reasons, &WrongChainError{Endpoint: ep.name, Want: c.cfg.ChainID, Have: ep.chainID})
		case ep.excluded != (Exclusion{}):
			reasons = append(reasons, fmt.Errorf("%s: excluded: %s", ep.name, ep.excluded.Reason))
		default:
			if limit := ep.rateLimitLocked(methods...); limit != nil {
				reasons = append(reasons, limit)
			}
		}
		ep.mu.Unlock()
	}
	if len(reasons) == 0 { // the caller has tried all of them
		return ErrNoEndpoint
	}
	return fmt.Errorf("%w: %w", ErrNoEndpoint, errors.Join(reasons...))
}

// each runs f, which calls the methods, on one endpoint after another until one answers. It returns an error that is an
// answer as it is. If no endpoint answers, it returns all errors joined.
func (c *Client) each(ctx context.Context, methods []string, f func(ctx context.Context, ep *endpoint) error) error {
	eps := c.candidates(methods...)
	if len(eps) == 0 {
		return c.none(methods...)
	}
	return eachOf(ctx, eps, f)
}

// eachOf is each for some endpoints.
func eachOf(ctx context.Context, eps []*endpoint, f func(ctx context.Context, ep *endpoint) error) error {
	var problems []error
	for i, ep := range eps {
		attempt, cancel := share(ctx, len(eps)-i)
		err := f(attempt, ep)
		cancel()
		if err == nil || !IsNoAnswer(err) {
			return err
		}
		problems = append(problems, err)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(problems...)
}

// share returns the context in which the first of n endpoints is asked. It has 1/n of the time that is left in ctx, because
// an endpoint that hangs must not use up the time of the n-1 others. Unless the endpoint is the last one, its queries wait
// for its pace only for paceWindow, because the next one may be faster.
func share(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	if n <= 1 {
		return context.WithCancel(ctx)
	}
	ctx = context.WithValue(ctx, othersFollow{}, true)
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/time.Duration(n))
}

// patience is how long the requests of a caller to one endpoint may take in all, with the waits for its pace, where no
// deadline of the caller ends them: a few times the limit of one request.
func (c *Client) patience() time.Duration { return 4 * c.cfg.Timeout }

// othersFollow is the key of a context in which an endpoint is asked that is not the last one.
type othersFollow struct{}

// Call forwards a call and returns the raw result. params is a JSON array, or nil for none. If an endpoint gives no
// answer, the next one is asked, so the method should be safe to repeat; use Send for transactions. Errors wrap a
// *RPCError if a node answered with one.
func (c *Client) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	var list []json.RawMessage
	if len(params) > 0 {
		if err := json.Unmarshal(params, &list); err != nil {
			return nil, fmt.Errorf("parameters of %s: not a JSON array: %w", method, err)
		}
	}
	one := call{method: method, params: make([]any, len(list)), answers: answersCall}
	for i, p := range list {
		one.params[i] = p
	}
	var result json.RawMessage
	err := c.each(ctx, []string{method}, func(ctx context.Context, ep *endpoint) error {
		answers, err := ep.ask(ctx, []call{one})
		if err != nil {
			return err
		}
		result = answers[0].result
		return answers[0].err
	})
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	return result, nil
}

// Balances returns the balances in wei at the newest block, in the order of the addresses.
func (c *Client) Balances(ctx context.Context, addrs []common.Address) ([]*big.Int, error) {
	if len(addrs) == 0 {
		return nil, nil
	}
	calls := make([]call, len(addrs))
	for i, a := range addrs {
		calls[i] = call{method: "eth_getBalance", params: []any{a, "latest"}}
	}
	balances := make([]*big.Int, len(addrs))
	err := c.each(ctx, methodsOf(calls), func(ctx context.Context, ep *endpoint) error {
		answers, err := ep.ask(ctx, calls)
		if err != nil {
			return err
		}
		for i, a := range answers {
			if a.err != nil {
				return a.err
			}
			if balances[i], err = parseBig(a.result); err != nil {
				return ep.transportError(true, fmt.Errorf("balance of %s: %w", addrs[i], err))
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read balances: %w", err)
	}
	return balances, nil
}
