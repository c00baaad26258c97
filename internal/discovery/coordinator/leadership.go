package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"

	"github.com/rollcall-dev/rollcall/fsm"
	rollcallv1 "github.com/rollcall-dev/rollcall/proto/rollcall/v1"
)

const (
	// establishTimeout is how long the leader-established entry may wait to enter Raft's queue.
	establishTimeout = 5 * time.Second
	// leadAttempts is how many failures of the leader's work in a row end the process.
	leadAttempts = 5
	// leadSettled is the run time after which a failure counts as the first again.
	leadSettled = time.Minute
	// maxEpochJump is how far above its own epoch a leader accepts a reported epoch. A restored cluster lags by as
	// many epochs as there were leaders. The highest epoch of all would leave no next one.
	maxEpochJump = 1 << 32
)

// leader is the node's established leadership: one epoch, one context.
type leader struct {
	Leadership
	ctx            context.Context // ends with the epoch
	since          time.Time
	confirmer      *confirmer
	proposer       *proposer
	ownerSessions  *ownerSessions
	promotionQueue promotionQueue
	// failure is the last failure of Config.Lead; nil before the first.
	failure atomic.Pointer[error]
	// leadDone is closed when Config.Lead has finally returned.
	leadDone chan struct{}
	// reestablish requests a new epoch.
	reestablish  context.CancelCauseFunc
	restoreState restoreState
}

// lead runs the leadership as a function whenever this node leads. Exactly one runs at a time: the next begins after
// the previous one has returned, even if leadership was lost and regained between two checks.
func (n *Node) lead(ctx context.Context, r *raft.Raft, notify <-chan bool) error {
	g, ctx := errgroup.WithContext(ctx)
	var (
		mu      sync.Mutex
		leading bool
		changes int
	)
	wake := make(chan struct{}, 1)
	g.Go(func() error { // Raft blocks until the notification is received, so this loop does nothing else
		for {
			select {
			case <-ctx.Done():
				return nil
			case is := <-notify:
				mu.Lock()
				leading = is
				changes++
				mu.Unlock()
				select {
				case wake <- struct{}{}:
				default:
				}
			}
		}
	})
	g.Go(func() error {
		var (
			now  *leadershipRun
			seen int
		)
		for {
			select {
			case <-ctx.Done():
				// The leader's work ends first, including its running checks. Writes are served until another node has
				// taken over.
				if l := n.leader.Load(); l != nil {
					n.withStopTimeout("the leader's work", func() { <-l.leadDone })
				}
				n.handOver(r)
				var err error
				n.withStopTimeout("the end of the leadership", func() { err = now.end(context.Cause(ctx)) })
				return err
			case err := <-now.ended():
				if now = nil; err != nil {
					return err
				}
				continue
			case <-wake:
			}
			mu.Lock()
			is, count := leading, changes
			mu.Unlock()
			if count == seen {
				continue
			}
			seen = count
			err := now.end(errLostLeadership)
			if now = nil; err != nil {
				return err
			}
			if is {
				now = startLeadershipRun(context.WithoutCancel(ctx), func(tenure context.Context) error {
					return n.runTerms(tenure, ctx, r)
				})
			}
		}
	})
	return g.Wait()
}

// currentLeader returns the established leadership, or nil. It ignores an ended leadership, although its work may
// still be finishing its last checks.
func (n *Node) currentLeader() *leader {
	if l := n.leader.Load(); l != nil && l.ctx.Err() == nil {
		return l
	}
	return nil
}

// leadershipRun is a running leadership; nil if there is none.
type leadershipRun struct {
	cancel context.CancelCauseFunc
	done   chan error
}

func startLeadershipRun(ctx context.Context, body func(context.Context) error) *leadershipRun {
	ctx, cancel := context.WithCancelCause(ctx)
	t := &leadershipRun{cancel: cancel, done: make(chan error, 1)}
	go func() {
		defer cancel(nil)
		t.done <- body(ctx)
	}()
	return t
}

// end cancels the leadership and waits for its work to return.
func (t *leadershipRun) end(cause error) error {
	if t == nil {
		return nil
	}
	t.cancel(cause)
	return <-t.done
}

// ended returns the channel for the result of a leadership that returned by itself.
func (t *leadershipRun) ended() <-chan error {
	if t == nil {
		return nil
	}
	return t.done
}

// runTerms opens an epoch, serves it, and opens another one on request. ctx ends with the leadership. serving ends
// with the node's service, which ends first when the node stops.
func (n *Node) runTerms(ctx, serving context.Context, r *raft.Raft) error {
	var atLeast uint64
	for ctx.Err() == nil {
		l, err := n.establish(ctx, r, atLeast)
		switch {
		case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrRaftShutdown):
			return nil // Raft's notification follows, or has already arrived
		case err != nil:
			return err
		}
		var (
			again     *ReestablishError
			unsettled *unsettledError
		)
		err = n.serveEpoch(serving, l)
		switch {
		case errors.As(err, &unsettled):
			return err
		case errors.As(err, &again):
			atLeast = again.AtLeast
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

// establish commits the entry that opens an epoch. Once applied, it is also the barrier: the directory holds all
// writes that earlier leaders acknowledged.
func (n *Node) establish(ctx context.Context, r *raft.Raft, atLeast uint64) (*leader, error) {
	started := time.Now()
	op := &rollcallv1.LeaderEstablished{Node: n.cfg.ID, AtLeast: atLeast}
	if n.machine.State().Cluster() == "" {
		op.Cluster = strings.ToLower(rand.Text())
	}
	var res fsm.Result
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		var err error
		res, err = establish(r, n.watchdog, op, establishTimeout)
		switch {
		case errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrLeadershipTransferInProgress):
			return struct{}{}, err // this node still leads
		}
		return struct{}{}, permanent(err)
	}, backoff.WithBackOff(retryPolicy()), backoff.WithMaxElapsedTime(0))
	if err != nil {
		if ctx.Err() != nil {
			return nil, raft.ErrLeadershipLost
		}
		return nil, err
	}

	l := &leader{since: time.Now(), leadDone: make(chan struct{}), promotionQueue: newPromotions()}
	l.ctx, l.reestablish = context.WithCancelCause(ctx)
	l.confirmer = &confirmer{
		ctx: l.ctx, term: res.Term, cluster: n.machine.State().Cluster(), node: n.cfg.ID, raft: r, peers: n.peers,
		timeout: n.cfg.Timing.Transport, hedge: n.cfg.Timing.Lease / 10, metrics: n.metrics,
	}
	l.proposer = newProposer(r, n.watchdog, n.metrics, func(version uint32) error { return n.checkCommandVersion(r, version) })
	l.ownerSessions = newWriters(l.since, n.cfg.GoneAfter)
	l.Leadership = Leadership{
		Cluster: n.machine.State().Cluster(), Node: n.cfg.ID, Epoch: res.Epoch, Term: res.Term,
		Directory: n.machine, Confirm: l.confirmer.confirm, Lease: n.cfg.Timing.Lease, Ended: l.ctx.Done(),
	}
	n.metrics.leaderChanges.Inc()
	n.log.Info("leader established", "epoch", res.Epoch, "term", res.Term, "cluster", l.Cluster,
		"services", n.machine.State().Len(), "duration", time.Since(started))
	return l, nil
}

// serveEpoch serves an epoch until its context ends.
func (n *Node) serveEpoch(serving context.Context, l *leader) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.confirmer.close()
	defer l.reestablish(nil)
	n.leader.Store(l)
	defer func() {
		if !l.restoreState.open.Load() { // otherwise the process ends, and must serve nothing until then
			n.leader.Store(nil)
		}
	}()
	defer func() { n.log.Info("leadership ended", "epoch", l.Epoch, "cause", context.Cause(l.ctx)) }()
	wg.Go(func() { n.reconcileStaticServices(l) })

	err := n.runLead(serving, l)
	close(l.leadDone)
	if err == nil {
		<-l.ctx.Done() // the node is stopping, and serves until another node leads
	}
	if err := l.restoreState.settled(); err != nil {
		return err
	}
	if cause := context.Cause(l.ctx); cause != nil {
		// A new epoch was requested, or the leadership is lost; in both cases the work's own error is irrelevant.
		return cause
	}
	return err
}

// runLead runs Config.Lead and retries it with backoff, because a leader whose work does not run is worse than none.
// It returns nil when the epoch or the node's service ends.
func (n *Node) runLead(serving context.Context, l *leader) error {
	ctx, cancel := context.WithCancelCause(l.ctx)
	defer cancel(nil)
	defer context.AfterFunc(serving, func() { cancel(context.Cause(serving)) })()
	policy := retryPolicy()
	for failures := 0; ; {
		started := time.Now()
		err := n.cfg.Lead(ctx, l.Leadership)
		var again *ReestablishError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &again) && again.AtLeast-l.Epoch <= maxEpochJump:
			return err
		case again != nil:
			failures = 0 // another leader would fail the same way
			err = fmt.Errorf("an epoch of at least %d is asked for, which no leader after %d can have opened; look at what Redis holds, and then have this cluster claim it again: rollcall mirror take-over --force",
				again.AtLeast, l.Epoch)
		case err == nil:
			err = errors.New("it returned although the leadership stays")
		}
		l.failure.Store(&err)
		if time.Since(started) > leadSettled {
			failures = 0
			policy.Reset()
		}
		if failures++; failures == leadAttempts {
			return fmt.Errorf("the leader's work failed %d times in a row, last with: %w", failures, err)
		}
		wait := policy.NextBackOff()
		n.log.Error("leader's work failed", "epoch", l.Epoch, "err", err, "attempt", failures, "retry_in", wait)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// retryPolicy returns the backoff between attempts of a leader: 50 ms to 2 s, with jitter.
func retryPolicy() *backoff.ExponentialBackOff {
	p := backoff.NewExponentialBackOff()
	p.InitialInterval, p.MaxInterval = 50*time.Millisecond, 2*time.Second
	return p
}

func permanent(err error) error {
	if err == nil {
		return nil
	}
	return backoff.Permanent(err)
}
