package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

// List reads one page of the directory: linearizable from the leader, or from any coordinator with req.Stale.
func (c *Client) List(ctx context.Context, req *rollcallv1.ListServicesRequest) (*rollcallv1.ListServicesResponse, error) {
	var resp *rollcallv1.ListServicesResponse
	var err error
	if req.GetStale() {
		resp, err = c.listStale(ctx, req)
	} else {
		err = c.onLeader(ctx, retryPolicy{anyEpoch: true}, func(ctx context.Context, l *leadership, opt grpc.CallOption) (err error) {
			resp, err = rollcallv1.NewDiscoveryServiceClient(l.conn).ListServices(ctx, req, opt)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return resp, nil
}

// ListAll reads all pages. Each page is one state of the directory; a later page may be a later state. It ends after
// the first error.
func (c *Client) ListAll(ctx context.Context, req *rollcallv1.ListServicesRequest) iter.Seq2[*rollcallv1.ServiceRecord, error] {
	return func(yield func(*rollcallv1.ServiceRecord, error) bool) {
		req := proto.CloneOf(req)
		for {
			page, err := c.List(ctx, req)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, record := range page.GetRecords() {
				if !yield(record, nil) {
					return
				}
			}
			if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
				return
			}
		}
	}
}

// listStale calls the configured coordinators in turn, from a random one on, until one responds or ctx ends.
func (c *Client) listStale(ctx context.Context, req *rollcallv1.ListServicesRequest) (*rollcallv1.ListServicesResponse, error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = c.cfg.DiscoveryInterval
	pause.MaxInterval = c.cfg.PingInterval
	first := rand.IntN(len(c.cfg.Coordinators))
	for {
		var errs []error
		for i := range c.cfg.Coordinators {
			address := c.cfg.Coordinators[(first+i)%len(c.cfg.Coordinators)]
			resp, err := c.listAt(ctx, address, req)
			if err == nil {
				return resp, nil
			}
			if _, invalid := errors.AsType[*InvalidError](err); invalid || errors.Is(err, ErrClosed) {
				return nil, err
			}
			errs = append(errs, fmt.Errorf("%s: %w", address, err))
		}
		if !sleep(ctx, pause.NextBackOff()) {
			return nil, fmt.Errorf("%w: %w", ctx.Err(), errors.Join(errs...))
		}
	}
}

func (c *Client) listAt(ctx context.Context, address string, req *rollcallv1.ListServicesRequest) (*rollcallv1.ListServicesResponse, error) {
	// Ping first, because it detects a hanging or foreign node within PingTimeout, while a big page may take long.
	ping, err := c.Ping(ctx, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	cluster := c.cluster
	c.mu.Unlock()
	if id := ping.GetCluster(); cluster != "" && id != "" && id != cluster {
		return nil, &ForeignClusterError{Expected: cluster, Actual: id, Address: address}
	}
	conn, err := c.Conn(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	resp, err := rollcallv1.NewDiscoveryServiceClient(conn).ListServices(ctx, req)
	return resp, FromStatus(err)
}

// Watch yields a snapshot of the directory and then every change, in order. It follows the leader and resumes a broken
// stream at the last token. It ends with the first error that it yields. The error is ErrCompacted if the stream
// cannot be resumed: the directory was restored, the reader too slow, or the stream broke inside the snapshot.
func (c *Client) Watch(ctx context.Context, req *rollcallv1.WatchServicesRequest) iter.Seq2[*rollcallv1.WatchServicesResponse, error] {
	return func(yield func(*rollcallv1.WatchServicesResponse, error) bool) {
		req := proto.CloneOf(req)
		pause := backoff.ExponentialBackOff{
			InitialInterval: c.cfg.DiscoveryInterval, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: c.cfg.PingInterval,
		}
		for {
			l, err := c.waitLeader(ctx)
			if err != nil {
				yield(nil, fmt.Errorf("watch: %w", err))
				return
			}
			partial := false // a part of a snapshot was yielded, and cannot be completed
			stopped, err := c.watchAt(ctx, l, req, func(resp *rollcallv1.WatchServicesResponse) bool {
				pause.Reset()
				if partial = resp.GetToken() == ""; !partial {
					req.ResumeToken = resp.GetToken()
				}
				return yield(resp, nil)
			})
			switch {
			case stopped:
				return
			case ctx.Err() != nil:
				err = ctx.Err()
			case c.life.Err() != nil:
				err = ErrClosed
			case partial:
				err = fmt.Errorf("%w: the snapshot broke off: %w", ErrCompacted, err)
			case isTransportError(err), errors.Is(err, io.EOF), errors.Is(err, ErrNotEstablished):
				// ErrNotEstablished also comes from a coordinator that is stopping, or behind the state that this
				// reader has received.
				c.markDoubtful(l)
				c.log.Debug("watch to be resumed", "leader", l.Node, "err", err)
				if sleep(ctx, pause.NextBackOff()) {
					continue
				}
				err = ctx.Err()
			}
			yield(nil, fmt.Errorf("watch: %w", err))
			return
		}
	}
}

// watchAt reports whether take asked to stop. Otherwise the error is why the stream ended.
func (c *Client) watchAt(ctx context.Context, l *leadership, req *rollcallv1.WatchServicesRequest,
	take func(*rollcallv1.WatchServicesResponse) bool,
) (stopped bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A former leader may continue as a follower, or hang. Only the current leader is known to be alive.
	defer context.AfterFunc(l.done, cancel)()
	stream, err := rollcallv1.NewDiscoveryServiceClient(l.conn).WatchServices(ctx, req)
	if err != nil {
		return false, FromStatus(err)
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return false, FromStatus(err)
		}
		if !take(resp) {
			return true, nil
		}
	}
}
