package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/rollcall-dev/rollcall/internal/platform/hostlist"
)

// Info describes a relayer, by its own answers.
type Info struct {
	// RelayerID is the id to submit to: the pool of this project's relayer.
	RelayerID string
	// Scope is the idempotency scope of the caller's keys; "" if the relayer has no idempotency.
	Scope            string
	Paused, Disabled bool
	// Network is the relayer's name for its network.
	Network string
	// ChainID is the chain of the network, if its name has it, as that of this project's relayer; else 0, and [Client.Chain] returns it.
	ChainID uint64
}

// Usable reports whether the relayer accepts submissions.
func (i Info) Usable() bool { return !i.Paused && !i.Disabled }

// Ref returns the reference for reads.
func (i Info) Ref() Ref { return Ref{ID: i.RelayerID, Scope: i.Scope} }

// Ref refers to a relayer in reads.
type Ref struct {
	ID string
	// Scope is the idempotency scope that the relayer must have; "" for any.
	Scope string
	// Network is the network that a relayer without a scope must have for a Lookup, by its own name for it; "" for any.
	Network string
}

// Load is a relayer's load and state.
type Load struct {
	Pending          int // accepted and not mined, as the relayer counts
	Paused, Disabled bool
}

// perRelayers is how many relayers Discover reads.
const perRelayers = 100

// Discover returns the configured relayer, or the first usable one that the relayer lists. If none is usable, it returns
// the first one. It fails with [ErrNoRelayer] if there is none, and with [ErrOtherNetwork] if all of them have another network than
// the configured one: one process of OpenZeppelin's relayer may serve several.
//
// The first relayer that this project's relayer lists is the pool, and Discover returns no other: the id is part of an
// idempotent request, so all relayers of the pool must get the same.
func (c *Client) Discover(ctx context.Context) (Info, error) {
	if c.cfg.RelayerID != "" {
		return c.relayer(ctx, Ref{ID: c.cfg.RelayerID}, c.cfg.Network)
	}
	var list []relayerBody
	resp, _, err := c.get(ctx, "/relayers", url.Values{"page": {"1"}, "per_page": {strconv.Itoa(perRelayers)}}, "", &list)
	if err != nil {
		return Info{}, fmt.Errorf("list relayers: %w", err)
	}
	scope := resp.scope()
	if scope != "" && len(list) > 1 {
		list = list[:1]
	}
	var first *relayerBody
	other := "" // another network
	for i := range list {
		r := &list[i]
		if r.NetworkType != "" && r.NetworkType != "evm" || !ValidID(r.ID) {
			continue
		}
		if c.cfg.Network != "" && r.Network != c.cfg.Network {
			other = cmp.Or(other, r.Network, "none")
			continue
		}
		if first == nil {
			first = r
		}
		if !r.Paused && !r.disabled() {
			first = r
			break
		}
	}
	if first == nil && other != "" {
		return Info{}, fmt.Errorf("list relayers: %w", c.otherNetwork(other, c.cfg.Network))
	}
	if first == nil {
		return Info{}, fmt.Errorf("list relayers: %w", ErrNoRelayer)
	}
	return c.info(first.ID, scope, first), nil
}

// info returns the Info of a relayer's answer.
func (c *Client) info(id, scope string, r *relayerBody) Info {
	i := Info{RelayerID: id, Scope: scope, Paused: r.Paused, Disabled: r.disabled(), Network: r.Network}
	if number, ok := strings.CutPrefix(r.Network, "evm:"); ok && scope != "" { // others name their networks as they like
		i.ChainID, _ = strconv.ParseUint(number, 10, 63) // 0 if it is none
	}
	return i
}

// otherNetwork returns why a relayer is not used.
func (c *Client) otherNetwork(network, want string) error {
	return fmt.Errorf("%w: it has network %q instead of %q", ErrOtherNetwork, c.printable(network), c.printable(want))
}

// Relayer returns the relayer with an id. It fails with [ErrOtherNetwork] if it has another network than the configured one.
func (c *Client) Relayer(ctx context.Context, id string) (Info, error) {
	return c.relayer(ctx, Ref{ID: id}, c.cfg.Network)
}

// Confirm reads the relayer of an Info again, and returns what has become of it. It fails with [ErrOtherNetwork] or [ErrOtherScope] if
// another relayer answers by now under the same id.
func (c *Client) Confirm(ctx context.Context, known Info) (Info, error) {
	now, err := c.relayer(ctx, known.Ref(), "")
	switch {
	case err != nil:
		return Info{}, err
	case now.Network != known.Network:
		return Info{}, fmt.Errorf("read relayer %s: %w", known.RelayerID, c.otherNetwork(now.Network, known.Network))
	case now.Scope != known.Scope:
		return Info{}, fmt.Errorf("read relayer %s: %w", known.RelayerID, ErrOtherScope)
	}
	now.ChainID = known.ChainID
	return now, nil
}

// Chain returns the chain of a relayer, as its own node reports it. One that is paused or disabled may not call its node. For one that
// does not serve its node it returns the configured chain, if the network is configured, too.
func (c *Client) Chain(ctx context.Context, of Info) (uint64, error) {
	fail := func(err error) error { return fmt.Errorf("read the chain of relayer %s: %w", of.RelayerID, err) }
	limited, cancel := context.WithTimeout(ctx, c.cfg.ReadTimeout)
	defer cancel()
	resp, err := c.do(limited, &request{
		method: http.MethodPost, path: "/relayers/" + url.PathEscape(of.RelayerID) + "/rpc",
		body: []byte(`{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}`),
	})
	if err != nil {
		return 0, fail(readFailed(limited, err, false))
	}
	var answer struct {
		Result *hexutil.Uint64 `json:"result"`
		Data   struct {        // around the result in OpenZeppelin's older versions
			Result *hexutil.Uint64 `json:"result"`
		} `json:"data"`
	}
	if missing := resp.code >= 400 && resp.code < 500 || resp.code == http.StatusNotImplemented; missing && resp.code != http.StatusTooManyRequests {
		if c.cfg.ChainID != 0 && c.cfg.Network != "" {
			return c.cfg.ChainID, nil
		}
		return 0, fail(&Error{Code: resp.code, Reason: "eth_chainId through its /rpc is refused; if it does not serve that, configure its network and chain"})
	}
	if resp.code != http.StatusOK || resp.bodyErr != nil || json.Unmarshal(resp.body, &answer) != nil {
		return 0, fail(&Error{Code: resp.code, Reason: "no chain id", RetryAfter: resp.retryAfter(time.Now())})
	}
	id := cmp.Or(answer.Result, answer.Data.Result)
	if id == nil || *id == 0 || *id > math.MaxInt64 {
		return 0, fail(&Error{Code: resp.code, Reason: "no chain id"})
	}
	return uint64(*id), nil
}

// relayer reads one relayer. It must have the network, unless that is "".
func (c *Client) relayer(ctx context.Context, ref Ref, network string) (Info, error) {
	var r relayerBody
	resp, _, err := c.get(ctx, "/relayers/"+url.PathEscape(ref.ID), nil, ref.Scope, &r)
	if err != nil {
		return Info{}, fmt.Errorf("read relayer %s: %w", ref.ID, noRelayer(err))
	}
	if network != "" && r.Network != network {
		return Info{}, fmt.Errorf("read relayer %s: %w", ref.ID, c.otherNetwork(r.Network, network))
	}
	return c.info(ref.ID, resp.scope(), &r), nil
}

// noRelayer returns ErrNoRelayer for the relayer's own 404.
func noRelayer(err error) error {
	if errors.Is(err, errOwn404) {
		return ErrNoRelayer
	}
	return err
}

// Load returns a relayer's load.
func (c *Client) Load(ctx context.Context, ref Ref) (Load, error) {
	query := url.Values{"include_balance": {"false"}, "include_last_confirmed_tx": {"false"}, "include_pending_count": {"true"}}
	var b loadBody
	if _, _, err := c.get(ctx, "/relayers/"+url.PathEscape(ref.ID)+"/status", query, ref.Scope, &b); err != nil {
		return Load{}, fmt.Errorf("read the load of relayer %s: %w", ref.ID, noRelayer(err))
	}
	if b.Pending == nil {
		return Load{}, fmt.Errorf("read the load of relayer %s: %w", ref.ID, &Error{Code: http.StatusOK, Reason: "no count of pending transactions"})
	}
	const most = 1 << 30
	return Load{Pending: int(min(*b.Pending, most)), Paused: b.Paused, Disabled: b.SystemDisabled}, nil
}

// Get returns a transaction, with a known status. [ErrNotFound] reports that the relayer exists and does not have it.
func (c *Client) Get(ctx context.Context, ref Ref, id string) (Transaction, error) {
	if !ValidID(id) {
		return Transaction{}, fmt.Errorf("read transaction %q: %w", clip(id), ErrNotFound)
	}
	var raw json.RawMessage
	_, _, err := c.get(ctx, transactionsPath(ref.ID)+"/"+url.PathEscape(id), nil, ref.Scope, &raw)
	if errors.Is(err, errOwn404) {
		// The response does not show which one is missing.
		if _, err := c.relayer(ctx, ref, ""); err != nil {
			return Transaction{}, fmt.Errorf("read transaction %s: %w", id, err)
		}
		return Transaction{}, fmt.Errorf("read transaction %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return Transaction{}, fmt.Errorf("read transaction %s: %w", id, err)
	}
	tx, err := c.decodeAnswer(raw, id)
	if err != nil {
		return Transaction{}, fmt.Errorf("read transaction %s: %w", id, &Error{Code: http.StatusOK, Reason: err.Error()})
	}
	return tx, nil
}

// Cancel asks the relayer to cancel a transaction, and returns it, with a known status. The transaction may still be mined. An [*Error]
// with Unknown set reports that the request may have been done; repeating it does no harm.
func (c *Client) Cancel(ctx context.Context, ref Ref, id string) (Transaction, error) {
	if !ValidID(id) {
		return Transaction{}, fmt.Errorf("cancel transaction %q: %w", clip(id), ErrNotFound)
	}
	var raw json.RawMessage
	_, _, err := c.call(ctx, http.MethodDelete, transactionsPath(ref.ID)+"/"+url.PathEscape(id), nil, ref.Scope, &raw)
	if errors.Is(err, errOwn404) {
		return Transaction{}, fmt.Errorf("cancel transaction %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return Transaction{}, fmt.Errorf("cancel transaction %s: %w", id, err)
	}
	tx, err := c.decodeAnswer(raw, id)
	if err != nil {
		return Transaction{}, fmt.Errorf("cancel transaction %s: %w", id, &Error{Code: http.StatusOK, Reason: err.Error(), Unknown: true})
	}
	return tx, nil
}

// errOwn404 is a 404 of the relayer's application, not of a proxy.
var errOwn404 = errors.New("not found")

// get reads a path into data, and returns the envelope.
func (c *Client) get(ctx context.Context, path string, query url.Values, scope string, data any) (*response, *envelope, error) {
	return c.call(ctx, http.MethodGet, path, query, scope, data)
}

// call makes a call other than a submission. Only a response of the relayer's application in the required scope is a
// success, or a 404.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, scope string, data any) (*response, *envelope, error) {
	limited, cancel := context.WithTimeout(ctx, c.cfg.ReadTimeout)
	defer cancel()
	r := &request{method: method, path: path, query: query, header: http.Header{}}
	if scope != "" {
		r.header[headerScope] = []string{scope}
	}
	changes := method != http.MethodGet
	resp, err := c.do(limited, r)
	if err != nil {
		return nil, nil, readFailed(limited, err, changes)
	}
	e, application := decodeEnvelope(resp.body)
	fail := func(why string) error {
		return &Error{Code: resp.code, Reason: why, RetryAfter: resp.retryAfter(time.Now()), Unknown: changes && (resp.code < 300 || resp.code >= 500)}
	}
	switch {
	case errors.Is(resp.bodyErr, ErrTooLarge):
		return nil, nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, maxBody)
	case resp.bodyErr != nil:
		return nil, nil, fail("the body is incomplete")
	case resp.code == http.StatusPreconditionFailed && scope != "":
		return nil, nil, ErrOtherScope
	case !application && resp.code == http.StatusOK:
		return nil, nil, fail("another body than the relayer's")
	case !application:
		return nil, nil, fail(http.StatusText(resp.code))
	case scope != "" && resp.scope() != scope && (resp.code == http.StatusOK || resp.code == http.StatusNotFound):
		return nil, nil, ErrOtherScope
	case resp.code == http.StatusNotFound:
		return nil, nil, errOwn404
	case resp.code != http.StatusOK || !*e.Success:
		return nil, nil, fail(c.printable(e.text()))
	case isNull(e.Data) || json.Unmarshal(e.Data, data) != nil:
		return nil, nil, fail("other data than the relayer's")
	}
	return resp, &e, nil
}

// readFailed returns the error of a call other than a submission that has no response. changes reports that it may have changed something.
func readFailed(limited context.Context, err error, changes bool) error {
	if errors.Is(err, hostlist.ErrRefused) {
		return fmt.Errorf("%w: %w", ErrOtherHost, hostlist.ErrRefused)
	}
	failed, _ := errors.AsType[*callError](err)
	return &Error{Reason: reason(limited, failed.err), Unknown: changes && failed.sent > 0, exhausted: exhausted(failed.err)}
}
