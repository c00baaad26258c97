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

// Register writes a batch, all or nothing, on the current leader, retrying until ctx ends. The client fills in the
// writer's epoch. If the caller sets the epoch, the write is valid in that epoch only. Register retries a write with a
// sequence number until its outcome is known. A write without one returns UnknownOutcomeError if the outcome is
// unknown. Other refusals are the typed errors of this package.
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

// Status returns the results of the leader's checks.
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

// retryPolicy defines how a failed call may be retried.
type retryPolicy struct {
	once     bool // a write that must not be retried after an unknown outcome
	fenced   bool // a write that is applied at most once; a read has neither once nor fenced
	anyEpoch bool // may be retried in another epoch
}

// outcome is the outcome of a failed attempt.
type outcome int

const (
	final   outcome = iota // a definite answer
	undone                 // nothing was done; another leader, or the same one later, may do it
	unknown                // the write may have been done
)

// onLeader calls the leader until it gets a definite answer or ctx ends.
func (c *Client) onLeader(ctx context.Context, r retryPolicy, call func(context.Context, *leadership, grpc.CallOption) error) error {
	pause := backoff.ExponentialBackOff{
		InitialInterval: 10 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 500 * time.Millisecond,
	}
	var lost error // of a write: why an earlier attempt's outcome is unknown
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
		// There are no more attempts. A write that may have been done must not be reported as not done.
		if lost != nil {
			if !errors.Is(err, lost) {
				err = fmt.Errorf("%w; before that: %w", err, lost)
			}
			return &UnknownOutcomeError{Cause: err.Error(), Err: err}
		}
		return err
	}
}

// attempt calls l once. The duration is the wait that the refusal requests.
func (c *Client) attempt(ctx context.Context, l *leadership, r retryPolicy, call func(context.Context, *leadership, grpc.CallOption) error) (outcome, time.Duration, error) {
	limited, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	defer context.AfterFunc(l.done, cancel)()
	var to peer.Peer // set once the call has a connection
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

// isTransportError reports whether err is a missing answer rather than a coordinator's answer: the connection broke,
// or either side timed out.
func isTransportError(err error) bool {
	return status.Code(err) == codes.Unavailable || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func asUnknown(err error) error {
	if e, ok := errors.AsType[*UnknownOutcomeError](err); ok {
		return e
	}
	return &UnknownOutcomeError{Cause: err.Error(), Err: err}
}
