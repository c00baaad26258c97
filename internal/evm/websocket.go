package evm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/ethereum/go-ethereum/rpc"
	"github.com/gorilla/websocket"
)

// maxOwnLinks is the number of own links over which a call is repeated.
const maxOwnLinks = 3

// wsConn sends calls over one websocket. It dials on first use, and again once the websocket has closed.
type wsConn struct {
	identity
	url   string
	limit int64
	// dialTCP is [net.Dialer.DialContext], unless a test needs other connections.
	dialTCP func(ctx context.Context, network, address string) (net.Conn, error)
	ctx     context.Context // ends with close
	end     context.CancelFunc
	turn    chan struct{} // one value: the right to read and to replace shared
	shared  *link
}

func newWSConn(id identity, url string, limit int64) *wsConn {
	c := &wsConn{identity: id, url: url, limit: limit, dialTCP: new(net.Dialer).DialContext, turn: make(chan struct{}, 1)}
	c.ctx, c.end = context.WithCancel(context.Background())
	c.turn <- struct{}{}
	return c
}

// link is one websocket and the client that uses it. The client ends with the websocket, and does not dial another one.
type link struct {
	client *rpc.Client
	ctx    context.Context // ends when the websocket closes
}

// linkConn is the TCP connection of a link.
type linkConn struct {
	net.Conn
	closed func()
}

func (c *linkConn) Close() error {
	err := c.Conn.Close()
	c.closed()
	return err
}

// errLinkClosed means that the websocket closed while a call waited.
var errLinkClosed = errors.New("the websocket closed")

// connect returns a new link, whose client the caller closes.
func (c *wsConn) connect(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	open, closed := context.WithCancel(context.Background())
	var dialed atomic.Bool
	dialer := websocket.Dialer{
		Proxy: http.ProxyFromEnvironment,
		NetDialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if dialed.Swap(true) {
				closed() // the client could not write
				return nil, errLinkClosed
			}
			tcp, err := c.dialTCP(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &linkConn{Conn: tcp, closed: closed}, nil
		},
	}
	client, err := rpc.DialOptions(ctx, c.url, rpc.WithWebsocketDialer(dialer), rpc.WithWebsocketMessageSizeLimit(c.limit))
	if err != nil {
		closed()
		if c.ctx.Err() != nil {
			err = rpc.ErrClientQuit
		}
		return nil, err
	}
	context.AfterFunc(open, client.Close)
	return &link{client: client, ctx: open}, nil
}

// sharedLink returns the link that all calls use first. While one caller dials, the others wait for its link.
func (c *wsConn) sharedLink(ctx context.Context) (*link, error) {
	select {
	case <-c.turn:
		defer func() { c.turn <- struct{}{} }()
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if c.ctx.Err() != nil {
		return nil, rpc.ErrClientQuit
	}
	if c.shared == nil || c.shared.ctx.Err() != nil {
		l, err := c.connect(ctx)
		if err != nil {
			return nil, err
		}
		c.shared = l
	}
	return c.shared, nil
}

func (c *wsConn) close() {
	c.end()
	<-c.turn
	defer func() { c.turn <- struct{}{} }()
	if c.shared != nil {
		c.shared.client.Close()
	}
}

func (c *wsConn) do(ctx context.Context, calls []call, batch bool) ([]answer, error) {
	l, err := c.sharedLink(ctx)
	if err != nil {
		return nil, c.transportError(false, err)
	}
	answers, err := c.over(ctx, l, calls, batch)
	// An answer above the limit closes the link for all waiting callers, and ErrReadLimit does not identify it: each
	// caller repeats its request over a link of its own. errLinkClosed may have the same cause. A transaction is not sent
	// again: the node may have it, which a refusal of the second attempt would hide.
	for range maxOwnLinks {
		if !errors.Is(err, websocket.ErrReadLimit) && !errors.Is(err, errLinkClosed) || slices.ContainsFunc(calls, call.sends) {
			break
		}
		var own *link
		if own, err = c.connect(ctx); err != nil {
			break
		}
		answers, err = c.over(ctx, own, calls, batch)
		own.client.Close()
		if errors.Is(err, websocket.ErrReadLimit) {
			err = fmt.Errorf("%w: above the limit of %d bytes", ErrTooLarge, c.limit)
		}
	}
	if err != nil {
		return nil, c.transportError(true, err)
	}
	return answers, siftLimited(c.name, calls, answers)
}

// over sends calls over a link. It returns an error if the link gives no answers: the reader's error, or errLinkClosed.
// A call gets errLinkClosed if the reader fails before the call's writer has ended: go-ethereum's client leaves such a call
// waiting (rpc.Client.dispatch, lastOp). A call that cannot be written gets it, too.
func (c *wsConn) over(ctx context.Context, l *link, calls []call, batch bool) ([]answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.ctx, func() { cancel(errLinkClosed) })()
	answers, err := c.ask(ctx, l.client, calls, batch)
	closed := errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), errLinkClosed)
	if closed || errors.Is(err, rpc.ErrClientQuit) && c.ctx.Err() == nil {
		return nil, errLinkClosed
	}
	return answers, err
}

// ask sends calls by a client. It returns an error if there are no answers.
func (c *wsConn) ask(ctx context.Context, client *rpc.Client, calls []call, batch bool) ([]answer, error) {
	answers := make([]answer, len(calls))
	fail := func(i int, err error) {
		if e, ok := errors.AsType[rpc.Error](err); ok {
			var data json.RawMessage
			if d, ok := errors.AsType[rpc.DataError](err); ok && d.ErrorData() != nil {
				data, _ = json.Marshal(d.ErrorData())
			}
			answers[i].err = c.rpcError(calls[i].method, e.ErrorCode(), e.Error(), data)
			return
		}
		answers[i].err = errMissing
	}
	if !batch {
		var result json.RawMessage
		err := client.CallContext(ctx, &result, calls[0].method, calls[0].params...)
		answers[0].result = result
		if _, ok := errors.AsType[rpc.Error](err); err != nil && !ok {
			return nil, err
		} else if err != nil {
			fail(0, err)
		}
		return answers, nil
	}
	elems := make([]rpc.BatchElem, len(calls))
	results := make([]json.RawMessage, len(calls))
	for i, one := range calls {
		elems[i] = rpc.BatchElem{Method: one.method, Args: one.params, Result: &results[i]}
	}
	if err := client.BatchCallContext(ctx, elems); err != nil {
		return nil, err
	}
	for i, e := range elems {
		answers[i].result = results[i]
		if e.Error != nil {
			fail(i, e.Error)
		}
	}
	return answers, nil
}
