package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// Register writes a batch, all or nothing, on whichever coordinator leads, until ctx ends. The writer's epoch is
// filled in unless the caller named one, which is then the only one it is for. A write with a sequence number is
// repeated until its outcome is known; one without ends with UnknownOutcomeError when it isn't. Other refusals
// are the typed errors of this package.
func (c *Client) Register(ctx context.Context, req *rollcallv1.RegisterServicesRequest) (*rollcallv1.RegisterServicesResponse, error) {
	var resp *rollcallv1.RegisterServicesResponse
	err := c.write(ctx, req.GetWriter(), func(ctx context.Context, stub rollcallv1.DiscoveryServiceClient, w *rollcallv1.Writer, opt grpc.CallOption) (err error) {
		resp, err = stub.RegisterServices(ctx, &rollcallv1.RegisterServicesRequest{
			Writer: w, Services: req.GetServices(),
			FullSet: req.GetFullSet(), AllowEmpty: req.GetAllowEmpty(), Force: req.GetForce(),
		}, opt)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	return resp, nil
}

// Deregister removes a batch, all or nothing, under the rules of Register.
func (c *Client) Deregister(ctx context.Context, req *rollcallv1.DeregisterServicesRequest) (*rollcallv1.DeregisterServicesResponse, error) {
	var resp *rollcallv1.DeregisterServicesResponse
	err := c.write(ctx, req.GetWriter(), func(ctx context.Context, stub rollcallv1.DiscoveryServiceClient, w *rollcallv1.Writer, opt grpc.CallOption) (err error) {
		resp, err = stub.DeregisterServices(ctx, &rollcallv1.DeregisterServicesRequest{
			Writer: w, Ids: req.GetIds(), Force: req.GetForce(),
		}, opt)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("deregister: %w", err)
	}
	return resp, nil
}

// Status asks the leader what its checks found.
func (c *Client) Status(ctx context.Context) (*rollcallv1.GetStatusResponse, error) {
	var resp *rollcallv1.GetStatusResponse
	err := c.onLeader(ctx, retryPolicy{anyEpoch: true}, func(ctx context.Context, l *leadership, opt grpc.CallOption) (err error) {
		resp, err = rollcallv1.NewDiscoveryServiceClient(l.conn).GetStatus(ctx, &rollcallv1.GetStatusRequest{}, opt, grpc.MaxCallRecvMsgSize(maxStatus))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	return resp, nil
}

func (c *Client) write(ctx context.Context, w *rollcallv1.Writer,
	send func(context.Context, rollcallv1.DiscoveryServiceClient, *rollcallv1.Writer, grpc.CallOption) error,
) error {
	fenced := w.GetSeq() != 0
	r := retryPolicy{once: !fenced, fenced: fenced, anyEpoch: w.GetEpoch() == 0}
	return c.onLeader(ctx, r, func(ctx context.Context, l *leadership, opt grpc.CallOption) error {
		stamped := &rollcallv1.Writer{Owner: w.GetOwner(), Incarnation: w.GetIncarnation(), Seq: w.GetSeq(), Epoch: w.GetEpoch()}
		if r.anyEpoch {
			stamped.Epoch = l.Epoch
		}
		return send(ctx, rollcallv1.NewDiscoveryServiceClient(l.conn), stamped, opt)
	})
}

// retryPolicy say what may be done about a call that did not succeed.
type retryPolicy struct {
	once     bool // a write that must not be repeated when its outcome is unknown
	fenced   bool // a write that is applied at most once; neither means a read
	anyEpoch bool // may be repeated in another epoch
}

// outcome of an attempt that failed.
type outcome int

const (
	final   outcome = iota // a definite answer
	undone                 // nothing was done, and another leader, or the same a little later, may do it
	unknown                // it may be done or not
)

// onLeader calls the leader until there is a definite answer or ctx ends.
func (c *Client) onLeader(ctx context.Context, r retryPolicy, call func(context.Context, *leadership, grpc.CallOption) error) error {
	pause := backoff.ExponentialBackOff{
		InitialInterval: 10 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 500 * time.Millisecond,
	}
	var lost error // of a write: why the outcome of an earlier attempt is unknown
	var tried *leadership
	for {
		l, err := c.waitLeader(ctx)
		if err == nil {
			if l != tried {
				pause.Reset()
				tried = l
			}
			var o outcome
			var wait time.Duration
			o, wait, err = c.attempt(ctx, l, r, call)
			switch {
			case err == nil || o == final:
				return err
			case o == unknown && r.once:
				return asUnknown(err)
			case o == unknown && r.fenced:
				lost = err
			}
			c.log.Debug("call to the leader to be repeated", "leader", l.Node, "epoch", l.Epoch, "err", err)
			if sleep(ctx, max(wait, pause.NextBackOff())) {
				continue
			}
			if !errors.Is(err, ctx.Err()) {
				err = fmt.Errorf("%w: %w", ctx.Err(), err)
			}
		}
		// No more attempts. A write that may have been done must not look as if it had not.
		if lost != nil {
			if !errors.Is(err, lost) {
				err = fmt.Errorf("%w; before that: %w", err, lost)
			}
			return &UnknownOutcomeError{Cause: err.Error(), Err: err}
		}
		return err
	}
}

// attempt calls l once. The duration is what the refusal asks to wait.
func (c *Client) attempt(ctx context.Context, l *leadership, r retryPolicy, call func(context.Context, *leadership, grpc.CallOption) error) (outcome, time.Duration, error) {
	limited, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	defer context.AfterFunc(l.done, cancel)()
	var to peer.Peer // filled in once the call was given to a connection
	raw := call(limited, l, grpc.Peer(&to))
	if raw == nil {
		return final, 0, nil
	}
	err := FromStatus(raw)
	wait, asksToWait := retryAfter(raw)
	wait = min(wait, c.cfg.CallTimeout)

	_, notLeader := errors.AsType[*NotLeaderError](err)
	_, stale := errors.AsType[*StaleEpochError](err)
	_, lost := errors.AsType[*UnknownOutcomeError](err)
	switch {
	case notLeader, stale && r.anyEpoch, errors.Is(err, ErrNotEstablished), errors.Is(err, ErrNoQuorum):
		c.markDoubtful(l)
		return undone, wait, err
	case lost:
		c.markDoubtful(l)
		return unknown, wait, err
	case asksToWait:
		return undone, wait, err
	case !isTransportError(err):
		return final, 0, err
	}
	if ctx.Err() == nil {
		c.markDoubtful(l)
	}
	if c.life.Err() != nil {
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	if to.Addr == nil {
		return undone, 0, err // never sent
	}
	return unknown, 0, err
}

// isTransportError reports whether err is not a coordinator's answer but the want of one: the connection broke, or the
// time was over on either side.
func isTransportError(err error) bool {
	return status.Code(err) == codes.Unavailable || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func asUnknown(err error) error {
	if e, ok := errors.AsType[*UnknownOutcomeError](err); ok {
		return e
	}
	return &UnknownOutcomeError{Cause: err.Error(), Err: err}
}
